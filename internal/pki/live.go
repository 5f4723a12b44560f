package pki

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"sync"
	"time"
)

// liveValidity is how long a certificate held in memory is valid. It is replaced
// at the first handshake after two thirds of that.
const liveValidity = 90 * 24 * time.Hour

// Serving describes a TLS server.
type Serving struct {
	// Name is the certificate's common name, for people who look at it.
	Name string
	// Hosts are the DNS names and IP addresses it answers to.
	Hosts []string
	// RequireClient refuses clients without a certificate of this authority.
	// Otherwise a certificate is asked for, and whoever handles the request
	// decides what its absence or a foreign one means.
	RequireClient bool
}

// ServingConfig serves HTTP/1.1 and HTTP/2 with a certificate that is renewed
// while the server runs.
func (a *Authority) ServingConfig(serving Serving) *tls.Config {
	template := x509.Certificate{
		Subject:     pkix.Name{CommonName: serving.Name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range serving.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	live := &liveCert{authority: a, template: template}
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		ClientCAs:      a.pool,
		ClientAuth:     tls.RequestClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return live.get() },
	}
	if serving.RequireClient {
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return config
}

// DialConfig trusts only this authority and presents a certificate for user in
// groups that is renewed while the client runs.
func (a *Authority) DialConfig(user string, groups ...string) *tls.Config {
	live := &liveCert{authority: a, template: x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		RootCAs:    a.pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return live.get()
		},
	}
}

// liveCert is a certificate that is issued when it is first asked for and again
// when two thirds of its life are over, or the clock has gone back behind it.
type liveCert struct {
	authority *Authority
	template  x509.Certificate

	mu      sync.Mutex
	current *tls.Certificate
}

func (l *liveCert) get() (*tls.Certificate, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.authority.clock.Now()
	if l.current != nil {
		leaf := l.current.Leaf
		if now.After(leaf.NotBefore) && now.Before(leaf.NotBefore.Add(liveValidity*2/3)) {
			return l.current, nil
		}
	}
	template := l.template
	template.NotBefore, template.NotAfter = now.Add(-time.Hour), now.Add(liveValidity)
	der, key, err := l.authority.issue(&template)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	l.current = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	return l.current, nil
}

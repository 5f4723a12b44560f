package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"k8s.io/utils/clock"
)

// The authority's own certificate spans all dates in practice, so that a machine
// that boots with its clock in 1970 gets one that is still valid once the clock
// is right.
var (
	authorityFrom  = time.Unix(0, 0).UTC()
	authorityUntil = time.Date(2099, 12, 31, 0, 0, 0, 0, time.UTC)
)

// Options configure an [Authority].
type Options struct {
	// Clock decides validity and renewal; nil means the real clock.
	Clock clock.PassiveClock
}

// Authority signs certificates. Its methods may be called from any goroutine.
type Authority struct {
	cert  *x509.Certificate
	key   crypto.Signer
	pem   []byte
	pool  *x509.CertPool
	clock clock.PassiveClock
}

// Open reads the authority in dir, or creates it. It fails when the directory
// cannot be written, or holds a certificate without its key or with another's.
func Open(dir string, options Options) (*Authority, error) {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	key, err := openKey(dir)
	if err != nil {
		return nil, err
	}
	cert, err := openCert(dir, key)
	if err != nil {
		return nil, err
	}
	a := &Authority{cert: cert, key: key, clock: options.Clock, pool: x509.NewCertPool()}
	a.pem = encodeCert(cert.Raw)
	a.pool.AddCert(cert)
	return a, nil
}

// CAPEM is the authority's certificate, PEM-encoded.
func (a *Authority) CAPEM() []byte { return append([]byte(nil), a.pem...) }

// Pool holds only the authority's certificate.
func (a *Authority) Pool() *x509.CertPool { return a.pool }

// ClientCert issues a certificate for user in groups. A validity of zero or less
// means as long as the authority's own.
func (a *Authority) ClientCert(user string, groups []string, validity time.Duration) (certPEM, keyPEM []byte, err error) {
	if user == "" {
		return nil, nil, errors.New("pki: a client certificate needs a user name")
	}
	now := a.clock.Now()
	from, until := now.Add(-time.Hour), now.Add(validity)
	if validity <= 0 {
		from, until = a.cert.NotBefore, a.cert.NotAfter
	}
	der, key, err := a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		NotBefore:   from,
		NotAfter:    until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = encodeKey(key)
	return encodeCert(der), keyPEM, err
}

// issue signs template for a fresh key.
func (a *Authority) issue(template *x509.Certificate) (der []byte, key *ecdsa.PrivateKey, err error) {
	key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: %w", err)
	}
	if template.SerialNumber, err = serial(); err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err = x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: %w", err)
	}
	return der, key, nil
}

func openKey(dir string) (crypto.Signer, error) {
	path := filepath.Join(dir, "ca.key")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(dir, "ca.crt")); err == nil {
			return nil, fmt.Errorf("pki: %s holds a certificate but not its key ca.key; restore the key, or remove ca.crt to make a new authority", dir)
		}
		return createKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("pki: %s holds no PEM block", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("pki: %s: %w", path, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("pki: %s holds a %T, which cannot sign", path, key)
	}
	return signer, nil
}

func createKey(path string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	text, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return key, writeAside(path, text)
}

func openCert(dir string, key crypto.Signer) (*x509.Certificate, error) {
	path := filepath.Join(dir, "ca.crt")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return createCert(path, key)
	}
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("pki: %s holds no PEM block", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("pki: %s: %w", path, err)
	}
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("pki: ca.crt and ca.key in %s do not belong together", dir)
	}
	return cert, nil
}

func createCert(path string, key crypto.Signer) (*x509.Certificate, error) {
	number, err := serial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          number,
		Subject:               pkix.Name{CommonName: "mend-ca"},
		NotBefore:             authorityFrom,
		NotAfter:              authorityUntil,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	if err := writeAside(path, encodeCert(der)); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// writeAside makes path appear whole and synced, or not at all.
func writeAside(path string, text []byte) error {
	aside, err := os.CreateTemp(filepath.Dir(path), ".pki-*") // mode 0600
	if err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	defer os.Remove(aside.Name())
	_, err = aside.Write(text)
	err = errors.Join(err, aside.Sync(), aside.Close())
	if err == nil {
		err = os.Rename(aside.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	return nil
}

func serial() (*big.Int, error) {
	number, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return number.Add(number, big.NewInt(1)), nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

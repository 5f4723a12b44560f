package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clocktesting "k8s.io/utils/clock/testing"
)

func openAuthority(t *testing.T, dir string, options Options) *Authority {
	t.Helper()
	a, err := Open(dir, options)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func parse(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("no PEM in %q", text)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestTheAuthorityIsCreatedOnceAndKeptPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	first := openAuthority(t, dir, Options{})
	if again := openAuthority(t, dir, Options{}); string(again.CAPEM()) != string(first.CAPEM()) {
		t.Error("opening again made another authority")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", e.Name(), info.Mode(), err)
		}
		names = append(names, e.Name())
	}
	if !slices.Equal(names, []string{"ca.crt", "ca.key"}) {
		t.Errorf("files: %v", names)
	}
	if cert := parse(t, first.CAPEM()); !cert.IsCA || cert.NotBefore.After(time.Unix(0, 0)) || cert.NotAfter.Before(time.Now().AddDate(50, 0, 0)) {
		t.Errorf("the authority is valid from %v until %v", cert.NotBefore, cert.NotAfter)
	}
}

func TestACrashBetweenKeyAndCertificateIsMended(t *testing.T) {
	dir := t.TempDir()
	openAuthority(t, dir, Options{})
	key, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "ca.crt")); err != nil {
		t.Fatal(err)
	}
	openAuthority(t, dir, Options{})
	if after, err := os.ReadFile(filepath.Join(dir, "ca.key")); err != nil || string(after) != string(key) {
		t.Errorf("the key changed: %v", err)
	}
}

func TestWhatDoesNotBelongTogetherIsRefused(t *testing.T) {
	write := func(dir, name string, text []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		spoil func(dir string)
		want  string
	}{
		"key missing":    {func(dir string) { os.Remove(filepath.Join(dir, "ca.key")) }, "holds a certificate but not its key"},
		"key garbage":    {func(dir string) { write(dir, "ca.key", []byte("x")) }, "holds no PEM block"},
		"cert garbage":   {func(dir string) { write(dir, "ca.crt", []byte("x")) }, "holds no PEM block"},
		"cert another's": {func(dir string) { write(dir, "ca.crt", openAuthority(t, t.TempDir(), Options{}).CAPEM()) }, "do not belong together"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			openAuthority(t, dir, Options{})
			c.spoil(dir)
			if _, err := Open(dir, Options{}); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAClientCertificateSaysWhoAndFromWhom(t *testing.T) {
	a := openAuthority(t, t.TempDir(), Options{})
	text, _, err := a.ClientCert("alice", []string{"dev", "ops"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	cert := parse(t, text)
	if cert.Subject.CommonName != "alice" || !slices.Equal(cert.Subject.Organization, []string{"dev", "ops"}) {
		t.Errorf("subject %v", cert.Subject)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: a.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: a.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err == nil {
		t.Error("a client's certificate serves")
	}
	if until := time.Until(cert.NotAfter); until > time.Hour || until < 59*time.Minute {
		t.Errorf("valid for %v", until)
	}
	if _, _, err := a.ClientCert("", nil, 0); err == nil {
		t.Error("a certificate for nobody")
	}
}

// serve answers every request with the client's name over TLS.
func serve(t *testing.T, config *tls.Config) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{TLSConfig: config, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if len(req.TLS.PeerCertificates) > 0 {
			io.WriteString(w, req.TLS.PeerCertificates[0].Subject.CommonName)
		}
	})}
	go server.ServeTLS(listener, "", "")
	t.Cleanup(func() { server.Close() })
	return "https://" + listener.Addr().String()
}

func TestServingRequiresClientsOfTheAuthorityWhenTold(t *testing.T) {
	a, other := openAuthority(t, t.TempDir(), Options{}), openAuthority(t, t.TempDir(), Options{})
	url := serve(t, a.ServingConfig(Serving{Name: "agent", Hosts: []string{"127.0.0.1"}, RequireClient: true}))
	get := func(config *tls.Config) (string, error) {
		resp, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}).Get(url)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return string(text), err
	}
	if who, err := get(a.DialConfig("mend-apiserver", "system:masters")); err != nil || who != "mend-apiserver" {
		t.Errorf("our own client: %q, %v", who, err)
	}
	foreign := other.DialConfig("mend-apiserver", "system:masters")
	foreign.RootCAs = a.Pool()
	if _, err := get(foreign); err == nil {
		t.Error("a client of another authority is served")
	}
	if _, err := get(&tls.Config{RootCAs: a.Pool()}); err == nil {
		t.Error("a client without a certificate is served")
	}
	if _, err := get(other.DialConfig("x")); err == nil {
		t.Error("the server is trusted by another authority's client")
	}
}

func TestServingCertificatesAreRenewedWhileServing(t *testing.T) {
	now := time.Now()
	clock := clocktesting.NewFakeClock(now)
	a := openAuthority(t, t.TempDir(), Options{Clock: clock})
	config := a.ServingConfig(Serving{Name: "api", Hosts: []string{"127.0.0.1", "localhost"}})
	leaf := func() *x509.Certificate {
		t.Helper()
		cert, err := config.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return cert.Leaf
	}
	first := leaf()
	if err := first.VerifyHostname("localhost"); err != nil {
		t.Error(err)
	}
	if err := first.VerifyHostname("127.0.0.1"); err != nil {
		t.Error(err)
	}
	clock.SetTime(now.Add(liveValidity / 2))
	if !leaf().Equal(first) {
		t.Error("renewed after half its life")
	}
	clock.SetTime(now.Add(liveValidity * 3 / 4))
	second := leaf()
	if second.Equal(first) || !second.NotAfter.After(first.NotAfter) {
		t.Error("not renewed after three quarters of its life")
	}
	clock.SetTime(now.Add(-24 * time.Hour))
	if third := leaf(); third.NotBefore.After(clock.Now()) {
		t.Error("not valid after the clock went back")
	}
}

// TestClientsGoOnAcrossRenewals: with both sides' time at the clock's, a client that
// keeps its connection and one that connects anew are served at each step of a year,
// and after the clock was set back.
func TestClientsGoOnAcrossRenewals(t *testing.T) {
	now := time.Now()
	clock := clocktesting.NewFakeClock(now)
	a := openAuthority(t, t.TempDir(), Options{Clock: clock})
	timed := func(config *tls.Config) *tls.Config {
		config.Time = clock.Now
		return config
	}
	url := serve(t, timed(a.ServingConfig(Serving{Name: "agent", Hosts: []string{"127.0.0.1"}, RequireClient: true})))
	client := func(keep bool) *http.Client {
		return &http.Client{Transport: &http.Transport{TLSClientConfig: timed(a.DialConfig("mend-apiserver")), DisableKeepAlives: !keep}}
	}
	keeping, anew := client(true), client(false)
	served := map[string]bool{} // by the serial number of the server's certificate
	connections := 0
	ask := func(when string, client *http.Client) {
		t.Helper()
		trace := &httptrace.ClientTrace{TLSHandshakeDone: func(state tls.ConnectionState, err error) {
			if err == nil {
				served[state.PeerCertificates[0].SerialNumber.String()] = true
			}
			if client == keeping {
				connections++
			}
		}}
		request, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Errorf("%s: %v", when, err)
			return
		}
		defer response.Body.Close()
		if who, err := io.ReadAll(response.Body); err != nil || string(who) != "mend-apiserver" {
			t.Errorf("%s: served as %q, %v", when, who, err)
		}
	}
	step := func(when string, at time.Time) {
		clock.SetTime(at)
		ask(when+", keeping its connection", keeping)
		ask(when+", connecting anew", anew)
	}
	for day := 0; day < 365; day += 20 {
		step(fmt.Sprintf("after %d days", day), now.AddDate(0, 0, day))
	}
	step("a day back", now.AddDate(0, 0, 359))
	step("two years back", now.AddDate(-1, 0, 0))
	if connections != 1 {
		t.Errorf("the client that keeps its connection made %d", connections)
	}
	if len(served) < 6 {
		t.Errorf("%d certificates in a year of 90 days' validity", len(served))
	}
}

func TestAKubeconfigIsComplete(t *testing.T) {
	a := openAuthority(t, t.TempDir(), Options{})
	text, err := a.Kubeconfig("https://127.0.0.1:6443", "admin", []string{"system:masters"})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://127.0.0.1:6443" || string(config.CAData) != string(a.CAPEM()) {
		t.Errorf("config %v", config)
	}
	if cert := parse(t, config.CertData); cert.Subject.CommonName != "admin" || cert.NotAfter.Before(time.Now().AddDate(10, 0, 0)) {
		t.Errorf("certificate of %v until %v", cert.Subject, cert.NotAfter)
	}
}

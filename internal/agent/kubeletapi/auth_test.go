package kubeletapi

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"mend/internal/pki"
	"mend/internal/runtime/sim"
)

func TestNewRefusesToServeStrangers(t *testing.T) {
	authority, err := pki.Open(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, config := range map[string]*tls.Config{
		"no TLS":                  nil,
		"certificates optional":   authority.ServingConfig(pki.Serving{}),
		"certificates of anybody": {ClientAuth: tls.RequireAnyClientCert, ClientCAs: authority.Pool()},
		"no authority":            {ClientAuth: tls.RequireAndVerifyClientCert},
	} {
		if _, err := New(Config{NodeName: "n1", Pods: &world{}, Runtime: sim.New(sim.Options{}), TLS: config}); err == nil {
			t.Errorf("%s: New accepts it", name)
		}
	}
}

func TestStrangersAreTurnedAway(t *testing.T) {
	w := newWorld(t, nil)
	other, err := pki.Open(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	foreign := other.DialConfig("admin", "system:masters")
	foreign.RootCAs = w.authority.Pool()
	for name, config := range map[string]*tls.Config{
		"no certificate":      {RootCAs: w.authority.Pool()},
		"foreign certificate": foreign,
	} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
		response, err := client.Get(w.base + "/healthz")
		if err == nil {
			response.Body.Close()
			t.Errorf("%s: answered with %d, want a refused handshake", name, response.StatusCode)
		}
	}
	if response, err := http.Get("http://" + strings.TrimPrefix(w.base, "https://") + "/healthz"); err == nil {
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			t.Error("plain HTTP is answered")
		}
	}
	// Even behind a server without TLS the handler answers nobody.
	recorder := httptest.NewRecorder()
	w.server.ServeHTTP(recorder, httptest.NewRequest("GET", "/pods", nil))
	if recorder.Code != http.StatusUnauthorized {
		t.Errorf("without TLS: %d, want 401", recorder.Code)
	}
}

func TestOnlyMastersAreAllowedByDefault(t *testing.T) {
	w := newWorld(t, nil)
	if code, body := w.ask(w.client("developers"), "GET", "/pods"); code != 403 || body != "Forbidden (user=mend-apiserver, verb=get, resource=nodes, subresource(s)=[pods proxy])\n" {
		t.Errorf("%d %q", code, body)
	}
	if code, _ := w.ask(w.admin(), "GET", "/pods"); code != 200 {
		t.Errorf("master gets %d", code)
	}
}

func TestAuthorizerIsAskedWithKubeletsAttributes(t *testing.T) {
	var asked []string
	w := newWorld(t, func(c *Config) {
		c.Authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			asked = append(asked, strings.Join([]string{a.GetVerb(), a.GetResource(), a.GetName(), a.GetSubresource(), a.GetUser().GetGroups()[0]}, " "))
			if a.GetSubresource() == "stats" {
				return authorizer.DecisionNoOpinion, "", errors.New("authorizer is down")
			}
			return authorizer.DecisionNoOpinion, "", nil
		})
	})
	client := w.client("g")
	for _, test := range []struct{ method, path, want string }{
		{"GET", "/metrics/resource", "get nodes n1 metrics g"},
		{"POST", "/exec/default/web/app", "create nodes n1 proxy g"},
		{"GET", "/containerLogs/default/web/app", "get nodes n1 proxy g"},
		{"GET", "/runningpods/", "get nodes n1 pods g,get nodes n1 proxy g"},
		{"GET", "/healthz", "get nodes n1 healthz g,get nodes n1 proxy g"},
		{"GET", "/nowhere", "get nodes n1 proxy g"},
		{"DELETE", "/pods", "delete nodes n1 pods g,delete nodes n1 proxy g"},
	} {
		asked = nil
		if code, _ := w.ask(client, test.method, test.path); code != 403 || strings.Join(asked, ",") != test.want {
			t.Errorf("%s %s: %d, asked %q, want %q", test.method, test.path, code, asked, test.want)
		}
	}
	if code, body := w.ask(client, "GET", "/stats/summary"); code != 500 || !strings.Contains(body, "Authorization error (user=mend-apiserver, verb=get, resource=nodes, subresource=stats)") {
		t.Errorf("an authorizer that fails: %d %q", code, body)
	}
}

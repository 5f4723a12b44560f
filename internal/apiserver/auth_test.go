package apiserver_test

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"mend/internal/testkit"
)

// browser is an HTTP client that trusts the server and says nothing about itself.
func browser(s *testkit.APIServer) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.PKI.Pool()}}}
}

func fetch(t *testing.T, client *http.Client, url string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(testContext(t), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func clientOf(t *testing.T, s *testkit.APIServer, user string, groups ...string) *kubernetes.Clientset {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(s.Kubeconfig(t, user, groups...))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestNobodyWithoutACertificateSeesAnythingButHealth(t *testing.T) {
	s := testkit.StartAPIServer(t, testkit.Listening)
	client := browser(s)
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		if code, text := fetch(t, client, s.URL+path); code != 200 || text != "ok" {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	for _, path := range []string{"/", "/api", "/apis", "/version", "/openapi/v2", "/metrics", "/livez/ping", "/debug/pprof/", "/api/v1/namespaces/default/secrets"} {
		code, text := fetch(t, client, s.URL+path)
		var status metav1.Status
		if err := json.Unmarshal([]byte(text), &status); err != nil || code != 401 || status.Reason != metav1.StatusReasonUnauthorized {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	// Nothing that a client can say about itself in a header helps.
	for _, headers := range [][]string{
		{"X-Remote-User", "admin", "X-Remote-Group", "system:masters"},
		{"Impersonate-User", "admin", "Impersonate-Group", "system:masters"},
		{"Authorization", "Bearer anything"},
	} {
		if code, text := fetch(t, client, s.URL+"/api/v1/pods", headers...); code != 401 {
			t.Errorf("%v: %d %s", headers, code, text)
		}
	}
}

func TestACertificateSaysWhoSomebodyIs(t *testing.T) {
	s := testkit.StartAPIServer(t, testkit.Listening)
	ctx := testContext(t)
	admin := clientOf(t, s, "admin", "system:masters")
	if _, err := admin.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("an administrator is refused: %v", err)
	}
	alice := clientOf(t, s, "alice", "dev")
	_, err := alice.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	want := `pods is forbidden: User "alice" cannot list resource "pods" in API group "" in the namespace "default"`
	if !apierrors.IsForbidden(err) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	me, err := alice.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || me.Status.UserInfo.Username != "alice" || !strings.Contains(strings.Join(me.Status.UserInfo.Groups, " "), "dev system:authenticated") {
		t.Errorf("who am I: %v, %v", me, err)
	}
	if _, err := alice.Discovery().ServerVersion(); err != nil {
		t.Errorf("version: %v", err)
	}
	for _, path := range []string{"/metrics", "/debug/pprof/", "/configz", "/logs"} {
		if err := alice.RESTClient().Get().AbsPath(path).Do(ctx).Error(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{"/metrics", "/debug/pprof/"} {
		if err := admin.RESTClient().Get().AbsPath(path).Do(ctx).Error(); err != nil {
			t.Errorf("%s as administrator: %v", path, err)
		}
	}
}

func TestACertificateOfAnotherAuthorityIsNoOne(t *testing.T) {
	s, other := testkit.StartAPIServer(t, testkit.Listening), testkit.StartAPIServer(t)
	cert, key, err := other.PKI.ClientCert("admin", []string{"system:masters"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	client := browser(s)
	client.Transport.(*http.Transport).TLSClientConfig.Certificates = []tls.Certificate{pair}
	if code, text := fetch(t, client, s.URL+"/api/v1/namespaces"); code != 401 {
		t.Errorf("%d %s", code, text)
	}
}

func TestInProcessClientsAreLoopsOrWhoTheySay(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	whoIs := func(user string, groups ...string) (string, error) {
		client, err := kubernetes.NewForConfig(s.ClientConfig(user, groups...))
		if err != nil {
			t.Fatal(err)
		}
		me, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{})
		return me.Status.UserInfo.Username, err
	}
	if name, err := whoIs("deployment"); name != "system:mend:deployment" || err != nil {
		t.Errorf("a loop is %q, %v", name, err)
	}
	if name, err := whoIs("bob", "dev"); name != "bob" || !apierrors.IsForbidden(err) {
		t.Errorf("bob is %q, %v", name, err)
	}
}

func TestAccessReviewsAnswerForOneselfAndOthers(t *testing.T) {
	s := testkit.StartAPIServer(t, testkit.Listening)
	ctx := testContext(t)
	about := &authorizationv1.ResourceAttributes{Namespace: "default", Verb: "delete", Resource: "pods"}
	self := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: about}}
	for who, want := range map[string]bool{"system:masters": true, "dev": false} {
		got, err := clientOf(t, s, "x", who).AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, self, metav1.CreateOptions{})
		if err != nil || got.Status.Allowed != want {
			t.Errorf("%s: %v, %v", who, got.Status, err)
		}
		other := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "x", Groups: []string{who}, ResourceAttributes: about}}
		if answer, err := s.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, other, metav1.CreateOptions{}); err != nil || answer.Status.Allowed != want {
			t.Errorf("about %s: %v, %v", who, answer.Status, err)
		}
	}
	_, err := s.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "exactly one of nonResourceAttributes or resourceAttributes must be specified") {
		t.Errorf("an empty review: %v", err)
	}
	token, err := s.Client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "x"}}, metav1.CreateOptions{})
	if err != nil || token.Status.Authenticated {
		t.Errorf("token review: %v, %v", token, err)
	}
}

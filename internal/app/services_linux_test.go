package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mend/internal/network/catalog"
	"mend/internal/network/families"
	"mend/internal/testkit"
)

// The cluster's DNS is nobody's to maintain: what a slip of kubectl deletes comes back.
func TestTheDNSIsPublishedAgainWhenSomebodyDeletesIt(t *testing.T) {
	client, log := testkit.StartAPIServer(t).Client, slog.New(slog.DiscardHandler)
	s := &services{p: &process{serviceRange: netip.MustParsePrefix("10.96.0.0/12"), log: log}, node: "vm", client: client, catalog: catalog.New()}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	listening := make(chan netip.AddrPort, 1)
	running.Go(func() { s.catalog.Run(ctx, client, log) })
	running.Go(func() { s.publish(ctx, listening) })
	listening <- netip.MustParseAddrPort("10.42.0.1:53")
	published := func() (name string) {
		t.Helper()
		testkit.WaitFor(t, "the DNS", func() error {
			service, err := client.CoreV1().Services("kube-system").Get(ctx, "kube-dns", metav1.GetOptions{})
			if err != nil {
				return err
			}
			list, err := client.DiscoveryV1().EndpointSlices("kube-system").List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			if service.Spec.ClusterIP != "10.96.0.10" || len(list.Items) != 1 || list.Items[0].Endpoints[0].Addresses[0] != "10.42.0.1" {
				return fmt.Errorf("%v, %v", service.Spec, list.Items)
			}
			name = list.Items[0].Name
			return nil
		})
		return name
	}
	slice := published()
	if err := client.CoreV1().Services("kube-system").Delete(ctx, "kube-dns", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	published()
	if err := client.DiscoveryV1().EndpointSlices("kube-system").Delete(ctx, slice, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	published()
}

func TestIsDualStack(t *testing.T) {
	for name, tt := range map[string]struct {
		config Config
		want   bool
	}{
		"by default":              {Config{}, families.HasIPv6()},
		"IPv4 was asked for":      {Config{IPFamilies: OnlyIPv4}, false},
		"simulated nodes":         {Config{Simulate: 1}, false},
		"a runtime of somebody's": {Config{RuntimeEndpoint: "unix:///run/x.sock"}, false},
	} {
		if got := (&process{config: tt.config}).isDualStack(); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// kubelets is how the API server reaches the agents of this process: over
// loopback, with mutual TLS like any kubelet.
type kubelets struct {
	tls       *tls.Config
	mu        sync.Mutex
	addresses map[string]string // node → host:port
	transport http.RoundTripper
}

func (k *kubelets) add(node, address string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.addresses == nil {
		k.addresses = map[string]string{}
		// HTTP/1.1: exec, attach and port-forward upgrade the connection.
		k.transport = &http.Transport{
			TLSClientConfig:     k.tls,
			TLSHandshakeTimeout: 10 * time.Second,
			IdleConnTimeout:     90 * time.Second,
		}
	}
	k.addresses[node] = address
}

func (k *kubelets) remove(node string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.addresses, node)
}

// Connect implements apiserver.KubeletConnector.
func (k *kubelets) Connect(_ context.Context, node string) (*url.URL, http.RoundTripper, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	address, ok := k.addresses[node]
	if !ok {
		return nil, nil, fmt.Errorf("no agent of node %q is connected", node)
	}
	return &url.URL{Scheme: "https", Host: address}, k.transport, nil
}

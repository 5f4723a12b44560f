package apiserver

import (
	"context"
	"net/http"
	"net/url"
)

// KubeletConnector reaches the HTTP API of a node's agent.
type KubeletConnector interface {
	// Connect returns the agent's base URL (scheme and host) and a transport
	// that authenticates to it. The error says why the node cannot be reached.
	Connect(ctx context.Context, nodeName string) (*url.URL, http.RoundTripper, error)
}

package probe

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// maxRedirects is how many redirects on the same host are followed.
const maxRedirects = 10

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// dialNetwork opens a connection that leaves no port in TIME_WAIT for long: a node
// makes many short ones, always to the same addresses.
func dialNetwork(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			// Best effort: without it the probe is as good.
			_ = syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1, Linger: 1})
		})
	}}
	return dialer.DialContext(ctx, network, address)
}

type httpProber struct {
	transport http.RoundTripper
}

// newHTTPProber uses one transport for all probes. Certificates are not verified,
// no proxy of the host is used, and no connection is kept.
func newHTTPProber(dial dialFunc) *httpProber {
	return &httpProber{transport: utilnet.SetTransportDefaults(&http.Transport{
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives:  true,
		DisableCompression: true,
		Proxy:              http.ProxyURL(nil),
		DialContext:        dial,
	})}
}

func (p *httpProber) probe(ctx context.Context, action *v1.HTTPGetAction, container *v1.Container, host string, timeout time.Duration) attempt {
	request, err := httpRequest(ctx, action, container, host)
	if err != nil {
		return errored(err)
	}
	client := &http.Client{Timeout: timeout, Transport: p.transport, CheckRedirect: sameHostOnly}
	response, err := client.Do(request)
	if err != nil {
		return failed(err.Error())
	}
	defer response.Body.Close()
	var body bytes.Buffer
	if _, err := io.CopyN(&body, response.Body, maxOutput); err != nil && !errors.Is(err, io.EOF) {
		return attempt{err: err, state: "failure", reason: ReasonUnhealthy}
	}
	switch {
	case response.StatusCode >= http.StatusMultipleChoices && response.StatusCode < http.StatusBadRequest:
		return warned("Probe terminated redirects, Response body: " + body.String())
	case response.StatusCode >= http.StatusOK && response.StatusCode < http.StatusBadRequest:
		return succeeded(body.String())
	}
	// The body stays out of the message: it may hold secrets (k#99425).
	return failed(fmt.Sprintf("HTTP probe failed with statuscode: %d", response.StatusCode))
}

// sameHostOnly follows redirects only on the probed host; the answer that leads
// elsewhere is the last.
func sameHostOnly(request *http.Request, via []*http.Request) error {
	if request.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	return nil
}

func httpRequest(ctx context.Context, action *v1.HTTPGetAction, container *v1.Container, host string) (*http.Request, error) {
	port, err := portOf(action.Port, container)
	if err != nil {
		return nil, err
	}
	if action.Host != "" {
		host = action.Host
	}
	at, err := url.Parse(action.Path)
	if err != nil {
		at = &url.URL{Path: action.Path} // too late to refuse it
	}
	at.Scheme = strings.ToLower(string(action.Scheme))
	if at.Scheme == "" {
		at.Scheme = "http"
	}
	at.Host = net.JoinHostPort(host, strconv.Itoa(port))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, header := range action.HTTPHeaders {
		request.Header.Add(header.Name, header.Value)
	}
	if _, given := request.Header["User-Agent"]; !given {
		request.Header.Set("User-Agent", userAgent())
	}
	if accept, given := request.Header["Accept"]; !given {
		request.Header.Set("Accept", "*/*")
	} else if accept[0] == "" {
		request.Header.Del("Accept")
	}
	request.Host = request.Header.Get("Host")
	return request, nil
}

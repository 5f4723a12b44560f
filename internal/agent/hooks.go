package agent

import (
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
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-base/version"

	"mend/internal/agent/podspec"
)

// A hook's answer is read only so far that the connection can be used again.
const maxHookAnswer = 10 << 10

// runHook runs a lifecycle hook. text says what failed, as a status shows it.
func (a *Agent) runHook(ctx context.Context, v view, c *v1.Container, id string, h *v1.LifecycleHandler) (text string, err error) {
	where := fmt.Sprintf("for Container %q in Pod %q failed - error", c.Name, podspec.Desc(v.pod))
	switch {
	case h.Exec != nil:
		stdout, stderr, err := a.cfg.Runtime.ExecSync(ctx, id, h.Exec.Command, 0)
		if err != nil {
			text = fmt.Sprintf("Exec lifecycle hook (%v) %s: %v, message: %q", h.Exec.Command, where, err, string(stdout)+string(stderr))
		}
		return text, err
	case h.HTTPGet != nil:
		err := a.httpHook(ctx, v, c, h.HTTPGet)
		if err != nil {
			text = fmt.Sprintf("HTTP lifecycle hook (%s) %s: %v", h.HTTPGet.Path, where, err)
		}
		return text, err
	case h.Sleep != nil:
		select {
		case <-a.cfg.Clock.After(time.Duration(h.Sleep.Seconds) * time.Second):
			return "", nil
		case <-ctx.Done():
			err := errors.New("container terminated before sleep hook finished")
			return fmt.Sprintf("Sleep lifecycle hook (%d) %s: %v", h.Sleep.Seconds, where, err), err
		}
	}
	err = fmt.Errorf("invalid handler: %v", h)
	return fmt.Sprintf("Cannot run handler: %v", err), err
}

// httpHook asks once. An answer, whatever its code, is a success, as upstream has
// it.
func (a *Agent) httpHook(ctx context.Context, v view, c *v1.Container, get *v1.HTTPGetAction) error {
	host := get.Host
	if host == "" {
		if len(v.ips) == 0 {
			return errors.New("failed to find networking container: the Pod has no address")
		}
		host = v.ips[0]
	}
	port, err := hookPort(get.Port, c)
	if err != nil {
		return err
	}
	scheme := strings.ToLower(string(get.Scheme))
	if scheme == "" {
		scheme = "http"
	}
	path, query, _ := strings.Cut(get.Path, "?")
	target := url.URL{Scheme: scheme, Host: net.JoinHostPort(host, strconv.Itoa(port)), Path: "/" + strings.TrimPrefix(path, "/"), RawQuery: query}
	err = a.ask(ctx, target, get.HTTPHeaders)
	if err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		target.Scheme = "http"
		if err = a.ask(ctx, target, get.HTTPHeaders); err == nil {
			a.event(v.pod, "", "", v1.EventTypeWarning, "LifecycleHTTPFallback",
				fmt.Sprintf("request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", target.Host))
		}
	}
	return err
}

// ask sends one request and reads a little of the answer.
func (a *Agent) ask(ctx context.Context, target url.URL, headers []v1.HTTPHeader) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", fmt.Sprintf("kube-lifecycle/%s.%s", version.Get().Major, version.Get().Minor))
	req.Header.Set("Accept", "*/*")
	for _, h := range headers {
		if strings.EqualFold(h.Name, "Host") {
			req.Host = h.Value
		}
		req.Header.Add(h.Name, h.Value)
	}
	client := http.Client{Transport: &http.Transport{
		DialContext:       a.cfg.ProbeDial,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // the Pod's certificate is its own affair
		DisableKeepAlives: true,
	}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxHookAnswer))
	return err
}

func hookPort(port intstr.IntOrString, c *v1.Container) (int, error) {
	if port.Type == intstr.Int {
		return port.IntValue(), nil
	}
	for _, p := range c.Ports {
		if p.Name == port.StrVal {
			return int(p.ContainerPort), nil
		}
	}
	if n, err := strconv.Atoi(port.StrVal); err == nil {
		return n, nil
	}
	return 0, fmt.Errorf("couldn't find port: %v", port.StrVal)
}

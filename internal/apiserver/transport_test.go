package apiserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apiserver/pkg/authentication/user"
)

func inProcess(ctx context.Context, handler http.HandlerFunc) *http.Client {
	return &http.Client{Transport: &transport{handler: handler, who: &user.DefaultInfo{Name: "loop"}, base: ctx}}
}

func get(t *testing.T, ctx context.Context, client *http.Client) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://in-process/path?q=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	return client.Do(req)
}

func TestTransportStreamsWhatTheHandlerWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		more := make(chan struct{})
		client := inProcess(t.Context(), func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("X-Path", req.RequestURI)
			io.WriteString(w, "one")
			w.(http.Flusher).Flush()
			w.Header().Set("X-Late", "not sent")
			<-more
			io.WriteString(w, "two")
		})
		resp, err := get(t, t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Header.Get("X-Path"); got != "/path?q=1" || resp.Header.Get("X-Late") != "" {
			t.Errorf("headers: path %q, late %q", got, resp.Header.Get("X-Late"))
		}
		part := make([]byte, 3)
		if _, err := io.ReadFull(resp.Body, part); err != nil || string(part) != "one" {
			t.Fatalf("first part %q, %v", part, err)
		}
		close(more)
		if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "two" {
			t.Errorf("rest %q, %v", rest, err)
		}
	})
}

func TestTransportEndsTheRequestWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		client := inProcess(t.Context(), func(w http.ResponseWriter, req *http.Request) {
			w.(http.Flusher).Flush()
			<-req.Context().Done()
			ended <- req.Context().Err()
		})
		ctx, cancel := context.WithCancel(t.Context())
		resp, err := get(t, ctx, client)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err := io.ReadAll(resp.Body); !errors.Is(err, context.Canceled) {
			t.Errorf("reading gave %v", err)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the handler's context says %v", err)
		}
	})
}

func TestTransportEndsAHandlerThatNeverAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		client := inProcess(t.Context(), func(_ http.ResponseWriter, req *http.Request) {
			<-req.Context().Done()
			close(ended)
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { synctest.Wait(); cancel() }()
		if _, err := get(t, ctx, client); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		<-ended
	})
}

func TestTransportEndsTheHandlerWhenTheBodyIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		client := inProcess(t.Context(), func(w http.ResponseWriter, _ *http.Request) {
			block := []byte(strings.Repeat("x", streamLimit))
			for {
				if _, err := w.Write(block); err != nil {
					ended <- err
					return
				}
			}
		})
		resp, err := get(t, t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the handler is ahead of its reader and waits
		resp.Body.Close()
		if err := <-ended; !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("writing gave %v", err)
		}
	})
}

// Nobody reads before a write's handler has ended, however long its answer is.
func TestTransportTakesTheWholeAnswerOfAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := strings.Repeat("x", 3*streamLimit)
		client := inProcess(t.Context(), func(w http.ResponseWriter, req *http.Request) {
			body, _ := io.ReadAll(req.Body)
			w.WriteHeader(http.StatusCreated)
			for range 2 {
				io.WriteString(w, answer)
			}
			w.Write(body)
		})
		resp, err := client.Post("http://in-process/path", "text/plain", strings.NewReader("end"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusCreated || string(got) != answer+answer+"end" {
			t.Errorf("status %d, %d bytes, %v", resp.StatusCode, len(got), err)
		}
	})
}

func TestTransportEndsAWriteWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := inProcess(t.Context(), func(w http.ResponseWriter, req *http.Request) {
			<-req.Context().Done()
			w.WriteHeader(http.StatusGatewayTimeout)
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { synctest.Wait(); cancel() }()
		req, err := http.NewRequestWithContext(ctx, http.MethodDelete, "http://in-process/path", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Do(req); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestTransportSurvivesHandlersThatPanic(t *testing.T) {
	for name, c := range map[string]struct {
		write bool
		cause any
		want  string
	}{
		"abort before the headers": {false, http.ErrAbortHandler, io.ErrUnexpectedEOF.Error()},
		"abort in the middle":      {true, http.ErrAbortHandler, io.ErrUnexpectedEOF.Error()},
		"another panic":            {true, "boom", "boom"},
	} {
		t.Run(name, func(t *testing.T) {
			client := inProcess(t.Context(), func(w http.ResponseWriter, _ *http.Request) {
				if c.write {
					io.WriteString(w, "part")
				}
				panic(c.cause)
			})
			for _, method := range []string{http.MethodGet, http.MethodPut} {
				req, err := http.NewRequestWithContext(t.Context(), method, "http://in-process/path", nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := client.Do(req)
				if err == nil {
					_, err = io.ReadAll(resp.Body)
				}
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: got %v, want %q in it", method, err, c.want)
				}
			}
		})
	}
}

func TestTransportIdentityIsInTheContextOnly(t *testing.T) {
	var seen user.Info
	client := inProcess(t.Context(), func(_ http.ResponseWriter, req *http.Request) {
		if answer, ok, err := authenticateInProcess(req); ok && err == nil {
			seen = answer.User
		}
		if len(req.Header) != 0 {
			t.Errorf("headers were added: %v", req.Header)
		}
	})
	// A caller's own values, another identity among them, stay behind.
	ctx := context.WithValue(t.Context(), identityKey{}, user.Info(&user.DefaultInfo{Name: "forged"}))
	resp, err := get(t, ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if seen == nil || seen.GetName() != "loop" {
		t.Errorf("the handler saw %v", seen)
	}
	outside, err := http.NewRequest(http.MethodGet, "http://outside/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := authenticateInProcess(outside); ok {
		t.Error("a request without the context's value was authenticated")
	}
	socket := outside.WithContext(context.WithValue(t.Context(), identityKey{}, user.Info(&user.DefaultInfo{Name: "forged"})))
	if _, ok, _ := newAuthenticator(nil).AuthenticateRequest(socket); ok {
		t.Error("the chain of the sockets took an identity from the context")
	}
}

func TestTransportRefusesAfterTheServerStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client := inProcess(ctx, func(http.ResponseWriter, *http.Request) { t.Error("the handler was called") })
	cancel()
	if _, err := get(t, t.Context(), client); err == nil {
		t.Error("no error")
	}
}

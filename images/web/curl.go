package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// curl is `curl [-X METHOD] [-m SECONDS] URL`, so that a Pod can be given orders from
// inside: kubectl exec POD -- curl -X POST localhost/healthz/fail. Other flags of one
// letter without a value are taken and ignored. As the real one, it exits with 7 when
// nothing answers; unlike it, with 22 for an answer of 400 and above.
func curl(s streams, args []string) int {
	method, url, limit := http.MethodGet, "", 30*time.Second
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case (a == "-X" || a == "-m") && i+1 == len(args):
			return fail(s, "curl", fmt.Errorf("option %s: requires parameter", a))
		case a == "-X":
			i++
			method = args[i]
		case a == "-m":
			i++
			d, err := time.ParseDuration(args[i] + "s")
			if err != nil {
				return fail(s, "curl", fmt.Errorf("-m %q is not a number of seconds", args[i]))
			}
			limit = d
		case strings.HasPrefix(a, "-"):
		default:
			url = a
		}
	}
	if url == "" {
		return fail(s, "curl", errors.New("no URL specified"))
	}
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		return fail(s, "curl", err)
	}
	resp, err := (&http.Client{Timeout: limit}).Do(req)
	if err != nil {
		fail(s, "curl", err)
		return 7
	}
	defer resp.Body.Close()
	if _, err := io.Copy(s.out, resp.Body); err != nil {
		return fail(s, "curl", err)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return 22
	}
	return 0
}

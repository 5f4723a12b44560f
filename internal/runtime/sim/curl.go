package sim

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// curl is also wget: curl [-X METHOD] [-m SECONDS] URL, wget [-T SECONDS] -qO- URL.
// Other flags are taken and ignored. It exits with 7 when nothing answers and with
// 22 for an answer of 400 and above.
func curl(c *call) int {
	method, url, timeout := curlArguments(c.args)
	if url == "" {
		return fail(c, "curl", errors.New("no URL specified"))
	}
	status, body, err := c.shell.host.curl(method, url, timeout)
	if err != nil {
		fail(c, "curl", err)
		return 7
	}
	c.out.Write(body)
	if status >= 400 {
		return 22
	}
	return 0
}

func curlArguments(args []string) (method, url string, timeout time.Duration) {
	method, timeout = "GET", 30*time.Second
	for i := 0; i < len(args); i++ {
		arg, value := args[i], ""
		if i+1 < len(args) {
			value = args[i+1]
		}
		switch arg {
		case "-X":
			method = value
			i++
		case "-m", "-T", "--max-time":
			if seconds, err := strconv.ParseFloat(value, 64); err == nil {
				timeout = time.Duration(seconds * float64(time.Second))
			}
			i++
		case "-O", "-o":
			i++
		default:
			if !strings.HasPrefix(arg, "-") {
				url = arg
			}
		}
	}
	if url != "" && !strings.Contains(url, "://") {
		url = "http://" + url
	}
	return method, url, timeout
}

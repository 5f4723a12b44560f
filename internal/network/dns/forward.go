package dns

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// attemptLimit is how long one resolver may take, forwardLimit all of them: a client
	// asks again after 5 s.
	attemptLimit = 1500 * time.Millisecond
	forwardLimit = 4500 * time.Millisecond
	// mostForwards is how many questions may be with other resolvers at once.
	mostForwards = 1000
	// sulk is for how long a resolver that did not answer comes last.
	sulk = 2 * time.Second
	// rereadEvery is how often the resolvers' file is looked at.
	rereadEvery = 5 * time.Second
)

var (
	errNoResolver = errors.New("this machine names no resolver to forward to")
	errTooMany    = errors.New("too many questions are waiting for other resolvers")
)

// forwarder asks the machine's resolvers.
type forwarder struct {
	path string // resolv.conf
	own  []netip.Addr
	busy chan struct{}

	mu        sync.Mutex
	read      time.Time
	modified  time.Time
	resolvers []string             // host:port
	failed    map[string]time.Time // when one last failed
}

func newForwarder(path string, own []netip.Addr) *forwarder {
	return &forwarder{path: path, own: own, busy: make(chan struct{}, mostForwards), failed: map[string]time.Time{}}
}

// list returns the resolvers, those that work first, at random.
func (f *forwarder) list() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if now.Sub(f.read) > rereadEvery {
		f.reread(now)
	}
	all := slices.Clone(f.resolvers)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	slices.SortStableFunc(all, func(a, b string) int {
		sulks := func(r string) int {
			if now.Sub(f.failed[r]) < sulk {
				return 1
			}
			return 0
		}
		return sulks(a) - sulks(b)
	})
	return all
}

// reread reads the file if it changed. A file that cannot be read leaves things as they
// are. Our own addresses would be a circle.
func (f *forwarder) reread(now time.Time) {
	f.read = now
	info, err := os.Stat(f.path)
	if err != nil || info.ModTime().Equal(f.modified) {
		return
	}
	config, err := dns.ClientConfigFromFile(f.path)
	if err != nil {
		return
	}
	f.modified, f.resolvers = info.ModTime(), nil
	for _, server := range config.Servers {
		address, err := netip.ParseAddr(server)
		if err == nil && !slices.Contains(f.own, address.Unmap()) {
			f.resolvers = append(f.resolvers, net.JoinHostPort(server, config.Port))
		}
	}
}

func (f *forwarder) note(resolver string, failed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if failed {
		f.failed[resolver] = time.Now()
	} else {
		delete(f.failed, resolver)
	}
}

// ask sends a question on. Over UDP an answer that does not fit comes back truncated, for
// the client to ask again over TCP.
func (f *forwarder) ask(ctx context.Context, question *dns.Msg, tcp bool) (*dns.Msg, error) {
	select {
	case f.busy <- struct{}{}:
		defer func() { <-f.busy }()
	default:
		return nil, errTooMany
	}
	ctx, cancel := context.WithTimeout(ctx, forwardLimit)
	defer cancel()
	resolvers := f.list()
	if len(resolvers) == 0 {
		return nil, errNoResolver
	}
	client := &dns.Client{Net: "udp", Timeout: attemptLimit, UDPSize: dns.DefaultMsgSize}
	if tcp {
		client.Net = "tcp"
	}
	var last error
	for i := 0; i < max(2, len(resolvers)) && ctx.Err() == nil; i++ {
		resolver := resolvers[i%len(resolvers)]
		answer, _, err := client.ExchangeContext(ctx, question, resolver)
		if err == nil && answer.Rcode != dns.RcodeServerFailure && answer.Rcode != dns.RcodeRefused {
			f.note(resolver, false)
			return answer, nil
		}
		f.note(resolver, err != nil)
		if last = err; err == nil {
			last = errors.New(resolver + " answers " + strings.ToLower(dns.RcodeToString[answer.Rcode]))
		}
	}
	return nil, last
}

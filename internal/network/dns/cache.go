package dns

import (
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// mostKept and keptFor bound what is remembered of forwarded answers.
	mostKept = 10000
	keptFor  = 30 * time.Second
)

// cache keeps forwarded answers for as long as their records allow, at most 30 s.
type cache struct {
	mu   sync.Mutex
	kept map[cacheKey]kept
}

// cacheKey is a question and what else changes its answer.
type cacheKey struct {
	name     string
	kind     uint16
	dnssec   bool
	disabled bool // checking disabled
	tcp      bool
}

type kept struct {
	answer       *dns.Msg
	since, until time.Time
}

func newCache() *cache { return &cache{kept: map[cacheKey]kept{}} }

func keyOf(question *dns.Msg, tcp bool) cacheKey {
	k := cacheKey{name: strings.ToLower(question.Question[0].Name), kind: question.Question[0].Qtype, disabled: question.CheckingDisabled, tcp: tcp}
	if opt := question.IsEdns0(); opt != nil {
		k.dnssec = opt.Do()
	}
	return k
}

// get returns an answer with what is left of its records' time.
func (c *cache) get(key cacheKey, now time.Time) *dns.Msg {
	c.mu.Lock()
	k, there := c.kept[key]
	c.mu.Unlock()
	if !there || !now.Before(k.until) {
		return nil
	}
	answer := k.answer.Copy()
	age := uint32(now.Sub(k.since) / time.Second)
	eachRecord(answer, func(h *dns.RR_Header) { h.Ttl -= min(age, h.Ttl) })
	return answer
}

// put remembers an answer. Only what says that there is something, or that there is not,
// is worth it.
func (c *cache) put(key cacheKey, answer *dns.Msg, now time.Time) {
	if answer.Truncated || answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError {
		return
	}
	life, any := uint32(keptFor/time.Second), false
	eachRecord(answer, func(h *dns.RR_Header) { life, any = min(life, h.Ttl), true })
	if !any || life == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.kept) >= mostKept {
		for old := range c.kept { // any one: maps are walked in no order
			delete(c.kept, old)
			break
		}
	}
	c.kept[key] = kept{answer: answer.Copy(), since: now, until: now.Add(time.Duration(life) * time.Second)}
}

func eachRecord(m *dns.Msg, f func(*dns.RR_Header)) {
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype != dns.TypeOPT {
				f(rr.Header())
			}
		}
	}
}

package dns

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/miekg/dns"
)

// handler answers questions.
type handler struct {
	answerer
	forward *forwarder
	cache   *cache
	log     *slog.Logger
}

// smallest is the size of a UDP answer to a client that names none.
const smallest = dns.MinMsgSize

// ServeDNS answers one question.
func (h *handler) ServeDNS(w dns.ResponseWriter, question *dns.Msg) {
	_, tcp := w.RemoteAddr().(*net.TCPAddr)
	answer := h.answer(context.Background(), question, tcp)
	answer.Id = question.Id
	if !tcp {
		size := smallest
		if opt := question.IsEdns0(); opt != nil {
			size = max(int(opt.UDPSize()), smallest)
		}
		answer.Truncate(size)
	}
	if err := w.WriteMsg(answer); err != nil {
		h.log.Debug("cannot answer", "to", w.RemoteAddr(), "err", err)
	}
}

// answer never returns nil.
func (h *handler) answer(ctx context.Context, question *dns.Msg, tcp bool) *dns.Msg {
	reply := new(dns.Msg)
	reply.SetReply(question)
	reply.RecursionAvailable, reply.Compress = true, true
	if opt := question.IsEdns0(); opt != nil {
		if opt.Version() != 0 {
			reply.Rcode = dns.RcodeBadVers
		}
		reply.SetEdns0(dns.DefaultMsgSize, opt.Do())
	}
	if len(question.Question) != 1 || question.Opcode != dns.OpcodeQuery || reply.Rcode != dns.RcodeSuccess {
		if reply.Rcode == dns.RcodeSuccess {
			reply.Rcode = dns.RcodeNotImplemented
		}
		return reply
	}
	q := question.Question[0]
	switch {
	case q.Qclass != dns.ClassINET, q.Qtype == dns.TypeAXFR, q.Qtype == dns.TypeIXFR:
		reply.Rcode = dns.RcodeRefused
		return reply
	case h.owns(q.Name):
		h.own(ctx, reply, question, tcp)
		return reply
	}
	if q.Qtype == dns.TypePTR {
		if names := h.names(q); len(names) > 0 {
			reply.Authoritative, reply.Answer = true, names
			return reply
		}
	}
	return h.forwarded(ctx, reply, question, tcp)
}

// own answers a name of the zone.
func (h *handler) own(ctx context.Context, reply, question *dns.Msg, tcp bool) {
	q := question.Question[0]
	f, ok := h.lookUp(q)
	if !ok {
		reply.Rcode = dns.RcodeServerFailure
		return
	}
	reply.Authoritative = true
	reply.Answer = f.records
	reply.Extra = append(reply.Extra, f.extra...)
	switch {
	case f.alias != "" && q.Qtype != dns.TypeCNAME:
		h.follow(ctx, reply, question, f.alias, tcp)
	case !f.exists:
		reply.Rcode = dns.RcodeNameError
	}
	if len(reply.Answer) == 0 {
		h.view.mu.RLock()
		reply.Ns = []dns.RR{h.soa()}
		h.view.mu.RUnlock()
	}
}

// follow adds what an ExternalName leads to. When that cannot be had the client still
// has the CNAME.
func (h *handler) follow(ctx context.Context, reply, question *dns.Msg, alias string, tcp bool) {
	next := question.Copy()
	next.Question[0].Name = alias
	if h.owns(alias) {
		if f, ok := h.lookUp(next.Question[0]); ok && f.alias == "" { // not along a chain
			reply.Answer = append(reply.Answer, f.records...)
		}
		return
	}
	if answer := h.forwarded(ctx, new(dns.Msg), next, tcp); answer.Rcode == dns.RcodeSuccess {
		reply.Answer = append(reply.Answer, answer.Answer...)
	}
}

// forwarded answers from the cache or from other resolvers.
func (h *handler) forwarded(ctx context.Context, reply, question *dns.Msg, tcp bool) *dns.Msg {
	key := keyOf(question, tcp)
	if kept := h.cache.get(key, time.Now()); kept != nil {
		kept.Question = question.Question // as the client spelt it
		return kept
	}
	answer, err := h.forward.ask(ctx, question, tcp)
	if err != nil {
		h.log.Debug("cannot resolve", "name", question.Question[0].Name, "err", err)
		reply.Rcode = dns.RcodeServerFailure
		return reply
	}
	h.cache.put(key, answer, time.Now())
	answer.Compress = true
	return answer
}

package proxy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
)

const (
	// perMessage is how many elements go into one netlink message: a list of elements
	// must stay under 64 kB, and an IPv6 element takes up to 140 bytes.
	perMessage = 300
	// Socket buffers, in bytes: a transaction is sent in one call, 50,000 elements are
	// 6 MB, and each message is answered.
	writeBuffer = 256 << 20
	readBuffer  = 16 << 20
	// answerLimit bounds the wait for the kernel's answer.
	answerLimit = 30 * time.Second
	// mostRemembered is how many clients session affinity remembers, per map.
	mostRemembered = 1 << 16
	// versionPrefix begins the name of the chain that tells which mend made the table.
	versionPrefix = "version-"
)

// errForeign says that the table is not there, or not as this mend makes it.
var errForeign = errors.New("the table is missing or not this version's")

// kernel reads and writes the tables. It keeps one socket: opening one for each change
// costs a hundred times the change. It must not be used by two goroutines at once.
type kernel struct {
	c      Config
	conn   *nftables.Conn
	socket *netlink.Conn
	// chains are the classes' chains that are there.
	chains map[Family]map[Class]bool
	// unused are chains that no element needs any more, and since when. Before 6.2 the
	// kernel takes a moment to notice that.
	unused map[Family]map[Class]time.Time
}

// openKernel opens a socket in the network namespace of the calling thread.
func openKernel(c Config) (*kernel, error) {
	k := &kernel{c: c}
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(socket *netlink.Conn) error {
		k.socket = socket
		return errors.Join(socket.SetWriteBuffer(writeBuffer), socket.SetReadBuffer(readBuffer))
	}))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	k.conn = conn
	k.forget()
	return k, nil
}

func (k *kernel) close() { _ = k.conn.CloseLasting() }

func (k *kernel) forget() {
	k.chains, k.unused = map[Family]map[Class]bool{}, map[Family]map[Class]time.Time{}
	for _, f := range k.c.families() {
		k.chains[f], k.unused[f] = map[Class]bool{}, map[Class]time.Time{}
	}
}

func (k *kernel) table(family Family) *nftables.Table {
	of := nftables.TableFamilyIPv4
	if family == IPv6 {
		of = nftables.TableFamilyIPv6
	}
	return &nftables.Table{Name: k.c.table(), Family: of}
}

// set describes a set or map for the kernel.
func (k *kernel) set(s schema, family Family) *nftables.Set {
	set := &nftables.Set{
		Table: k.table(family), Name: s.name, KeyType: nftType(s.key, family), Concatenation: len(s.key) > 1,
		Interval: s.ranged, IsMap: len(s.value) > 0, HasTimeout: s.remembers, Dynamic: s.remembers,
	}
	if set.IsMap {
		set.DataType = nftType(s.value, family)
	}
	if s.remembers {
		set.Size = mostRemembered
	}
	return set
}

// classes is the map from a class to its chain.
func (k *kernel) classes(family Family) *nftables.Set {
	return &nftables.Set{Table: k.table(family), Name: setClasses, IsMap: true, Concatenation: true,
		KeyType: nftType([]field{class}, family), DataType: nftables.TypeVerdict}
}

func nftType(fields []field, family Family) nftables.SetDatatype {
	var types []nftables.SetDatatype
	for _, f := range fields {
		switch f {
		case source, destination, target:
			if family == IPv6 {
				types = append(types, nftables.TypeIP6Addr)
			} else {
				types = append(types, nftables.TypeIPAddr)
			}
		case protocol:
			types = append(types, nftables.TypeInetProto)
		case port, sourcePort, targetPort:
			types = append(types, nftables.TypeInetService)
		case index:
			types = append(types, nftables.TypeMark)
		case class:
			types = append(types, nftables.TypeMark, nftables.TypeMark)
		}
	}
	if len(types) == 1 {
		return types[0]
	}
	return nftables.MustConcatSetType(types...)
}

// version tells tables of different makes apart: it is a hash of all that does not
// depend on Services.
func (k *kernel) version(family Family) string {
	h := sha256.New()
	fmt.Fprintf(h, "%#v %x\n", schemas, k.c.mark())
	for _, chain := range fixed(k.c, family) {
		fmt.Fprint(h, chain.string(family))
	}
	for _, kind := range []Kind{Internal, External, ExternalLocal} {
		for _, sticky := range []int{0, 1} {
			fmt.Fprint(h, Class{Kind: kind, Cluster: 1, Local: 1, Sticky: sticky}.chain(k.c, family).string(family))
		}
	}
	return versionPrefix + hex.EncodeToString(h.Sum(nil)[:6])
}

// read returns what the tables hold; errForeign when they are to be made anew.
func (k *kernel) read() (map[slot]string, error) {
	k.forget()
	held := map[slot]string{}
	for _, family := range k.c.families() {
		if err := k.readChains(family); err != nil {
			return nil, err
		}
		for _, s := range schemas {
			if s.remembers {
				continue
			}
			elements, err := k.conn.GetSetElements(k.set(s, family))
			if errors.Is(err, os.ErrNotExist) {
				return nil, errForeign
			}
			if err != nil {
				return nil, fmt.Errorf("read the set %s: %w", s.name, err)
			}
			for _, e := range elements {
				held[slot{family, s.name, string(e.Key), string(e.KeyEnd)}] = string(e.Val)
			}
		}
	}
	return held, nil
}

// readChains finds out which classes have a chain.
func (k *kernel) readChains(family Family) error {
	_ = k.socket.SetDeadline(time.Now().Add(answerLimit))
	chains, err := k.conn.ListChainsOfTableFamily(k.table(family).Family)
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	known := false
	for _, chain := range chains {
		if chain.Table.Name == k.c.table() && chain.Name == k.version(family) {
			known = true
		}
	}
	if !known {
		return errForeign
	}
	elements, err := k.conn.GetSetElements(k.classes(family))
	if err != nil {
		return fmt.Errorf("read the set %s: %w", setClasses, err)
	}
	for _, e := range elements {
		k.chains[family][unpackClass(e.Key)] = true
	}
	return nil
}

// rebuild replaces the tables by new ones with everything in them, in one transaction.
func (k *kernel) rebuild(l *ledger) error {
	k.forget()
	for _, family := range k.c.families() {
		t := k.table(family)
		k.conn.AddTable(t) // deleting what is not there would fail
		k.conn.DelTable(t)
		k.conn.AddTable(t)
		k.conn.AddChain(&nftables.Chain{Table: t, Name: k.version(family)})
		for _, s := range schemas {
			if err := k.conn.AddSet(k.set(s, family), nil); err != nil {
				return fmt.Errorf("set %s: %w", s.name, err)
			}
		}
		if err := k.conn.AddSet(k.classes(family), nil); err != nil {
			return fmt.Errorf("set %s: %w", setClasses, err)
		}
		chains := fixed(k.c, family)
		for _, chain := range chains { // all before any rule, which may jump to one
			k.conn.AddChain(k.chain(chain, family))
		}
		for _, chain := range chains {
			k.addRules(chain, family)
		}
	}
	d := Difference{Add: l.all(), AddClasses: map[Family][]Class{}}
	for _, family := range k.c.families() {
		d.AddClasses[family] = l.classesOf(family)
	}
	if err := k.addClasses(d); err != nil {
		return err
	}
	return k.apply(d)
}

func (k *kernel) chain(c Chain, family Family) *nftables.Chain {
	chain := &nftables.Chain{Table: k.table(family), Name: c.Name}
	if c.Hook == "" {
		return chain
	}
	chain.Type = nftables.ChainTypeFilter
	if c.NAT {
		chain.Type = nftables.ChainTypeNAT
	}
	chain.Hooknum = map[string]*nftables.ChainHook{
		hookPrerouting: nftables.ChainHookPrerouting, hookOutput: nftables.ChainHookOutput, hookPostrouting: nftables.ChainHookPostrouting,
	}[c.Hook]
	chain.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(c.Priority))
	return chain
}

func (k *kernel) addRules(c Chain, family Family) {
	enc := encoder{family: family, mark: k.c.mark(), sets: map[string]*nftables.Set{}}
	for _, s := range schemas {
		enc.sets[s.name] = &nftables.Set{Name: s.name}
	}
	enc.sets[setClasses] = &nftables.Set{Name: setClasses}
	for _, rule := range c.Rules {
		k.conn.AddRule(&nftables.Rule{Table: k.table(family), Chain: &nftables.Chain{Table: k.table(family), Name: c.Name}, Exprs: enc.rule(rule)})
	}
}

// commit sends a difference: all of it holds from one moment on, or nothing. Chains that
// it needs come first, in a transaction of their own: a packet under way sees each set as
// it is at that moment, but chains as they were when it came.
func (k *kernel) commit(d Difference) error {
	if len(d.AddClasses) > 0 {
		if err := k.addClasses(d); err != nil {
			return err
		}
		if err := k.flush(); err != nil {
			return err
		}
	}
	return k.apply(d)
}

func (k *kernel) addClasses(d Difference) error {
	for family, classes := range d.AddClasses {
		for _, c := range classes {
			if err := k.addClass(family, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// apply sends a difference whose chains are there, or queued, and what was queued before
// it, in one transaction.
func (k *kernel) apply(d Difference) error {
	err := k.each(d.Delete, k.conn.SetDeleteElements)
	if err == nil {
		err = k.each(d.Add, k.conn.SetAddElements)
	}
	if err == nil {
		err = k.flush()
	}
	if err != nil {
		return err
	}
	for family, classes := range d.DropClasses {
		for _, c := range classes {
			k.unused[family][c] = time.Now()
		}
	}
	return nil
}

// addClass makes a class's chain, unless it is still there.
func (k *kernel) addClass(family Family, c Class) error {
	delete(k.unused[family], c)
	if k.chains[family][c] {
		return nil
	}
	chain := c.chain(k.c, family)
	k.conn.AddChain(k.chain(chain, family))
	k.addRules(chain, family)
	k.chains[family][c] = true
	return k.conn.SetAddElements(k.classes(family), []nftables.SetElement{{
		Key: []byte(c.pack()), VerdictData: &expr.Verdict{Kind: expr.VerdictJump, Chain: chain.Name}}})
}

// each queues sorted elements, a few hundred a message.
func (k *kernel) each(elements []Element, queue func(*nftables.Set, []nftables.SetElement) error) error {
	for len(elements) > 0 {
		first, n := elements[0], 1
		for n < min(len(elements), perMessage) && elements[n].Set == first.Set && elements[n].Family == first.Family {
			n++
		}
		batch := make([]nftables.SetElement, n)
		for i, e := range elements[:n] {
			batch[i] = nftables.SetElement{Key: []byte(e.Key), KeyEnd: []byte(e.End), Val: []byte(e.Value)}
		}
		if err := queue(k.set(schemaOf(first.Set), first.Family), batch); err != nil {
			return fmt.Errorf("encode elements of %s: %w", first.Set, err)
		}
		elements = elements[n:]
	}
	return nil
}

func (k *kernel) flush() error {
	if err := k.socket.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	err := k.conn.Flush()
	if err != nil {
		return fmt.Errorf("set the nftables table %s: %w", k.c.table(), err)
	}
	return nil
}

// dropUnused takes chains away that have been needless for some seconds. That it fails
// does no harm; it is tried again.
func (k *kernel) dropUnused(now time.Time) error {
	const patience = 5 * time.Second
	var dropped []func()
	for family, classes := range k.unused {
		for c, since := range classes {
			if now.Sub(since) < patience {
				continue
			}
			err := k.conn.SetDeleteElements(k.classes(family), []nftables.SetElement{{
				Key: []byte(c.pack()), VerdictData: &expr.Verdict{Kind: expr.VerdictJump, Chain: c.Name()}}})
			if err != nil {
				return err
			}
			chain := k.chain(Chain{Name: c.Name()}, family)
			k.conn.FlushChain(chain)
			k.conn.DelChain(chain)
			dropped = append(dropped, func() { delete(k.unused[family], c); delete(k.chains[family], c) })
		}
	}
	if len(dropped) == 0 {
		return nil
	}
	if err := k.flush(); err != nil {
		return err
	}
	for _, done := range dropped {
		done()
	}
	return nil
}

// isThere says whether every table is there as this mend made it.
func (k *kernel) isThere() (bool, error) {
	for _, family := range k.c.families() {
		if err := k.socket.SetDeadline(time.Now().Add(answerLimit)); err != nil {
			return false, err
		}
		_, err := k.conn.ListChain(k.table(family), k.version(family))
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("look for the table %s: %w", k.c.table(), err)
		}
	}
	return true, nil
}

// remove deletes the tables. It is no error when there are none.
func (k *kernel) remove() error {
	for _, family := range k.c.families() {
		k.conn.AddTable(k.table(family))
		k.conn.DelTable(k.table(family))
	}
	return k.flush()
}

// String prints the tables with everything that a ledger has, as the tests compare them.
func (l *ledger) string(c Config) string {
	var out strings.Builder
	for _, family := range c.families() {
		fmt.Fprintf(&out, "table %s %s\n", family.header(), c.table())
		for _, chain := range fixed(c, family) {
			out.WriteString(chain.string(family))
		}
		for _, k := range l.classesOf(family) {
			out.WriteString(k.chain(c, family).string(family))
		}
	}
	for _, e := range l.all() {
		fmt.Fprintln(&out, e)
	}
	return out.String()
}

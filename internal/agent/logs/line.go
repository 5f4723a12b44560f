package logs

import (
	"bytes"
	"errors"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// entry is one line of a log file. Text ends with a newline unless it is a part.
type entry struct {
	time   time.Time
	stream runtimeapi.LogStreamType
	text   []byte
}

var errFormat = errors.New("not a line in CRI format")

// parse reads a line with its newline, if it has one. Text points into the line.
func parse(line []byte) (entry, error) {
	stamp, rest, found := bytes.Cut(line, []byte(" "))
	if !found {
		return entry{}, errFormat
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return entry{}, errFormat
	}
	stream, rest, found := bytes.Cut(rest, []byte(" "))
	name := runtimeapi.LogStreamType(stream)
	if !found || name != runtimeapi.Stdout && name != runtimeapi.Stderr {
		return entry{}, errFormat
	}
	tags, text, found := bytes.Cut(rest, []byte(" "))
	if !found {
		return entry{}, errFormat
	}
	// More tags may come to be, behind colons.
	first, _, _ := bytes.Cut(tags, []byte(runtimeapi.LogTagDelimiter))
	if runtimeapi.LogTag(first) == runtimeapi.LogTagPartial {
		text = bytes.TrimSuffix(text, []byte("\n"))
	}
	return entry{time: at, stream: name, text: text}, nil
}

package logs

import (
	"bytes"
	"io"
	"os"
)

const tailBlock = 16 << 10

// seekTail moves to the start of the last n lines. A line without a newline at the
// end of the file does not count, but is behind that point too.
func seekTail(file *os.File, n int64) error {
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	block := make([]byte, tailBlock)
	var seen int64
	for end > 0 {
		start := max(end-tailBlock, 0)
		part := block[:end-start]
		if _, err := file.ReadAt(part, start); err != nil {
			return err
		}
		for at := bytes.LastIndexByte(part, '\n'); at >= 0; at = bytes.LastIndexByte(part[:at], '\n') {
			// The newline before the first wanted line is the one too many.
			if seen == n {
				_, err := file.Seek(start+int64(at)+1, io.SeekStart)
				return err
			}
			seen++
		}
		end = start
	}
	_, err = file.Seek(0, io.SeekStart)
	return err
}

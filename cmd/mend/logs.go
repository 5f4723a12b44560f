package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
	"github.com/spf13/cobra"

	"mend/internal/instance"
)

func newLogs(opts *options) *cobra.Command {
	var follow bool
	var tail int
	cmd := &cobra.Command{
		Use:   "logs",
		Short: "Print mend's own log",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := instance.Find(opts.dataDir)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			return printLog(ctx, found.LogFile(), cmd.OutOrStdout(), tail, follow)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on printing what is added")
	cmd.Flags().IntVar(&tail, "tail", -1, "lines to print from the end; all by default")
	return cmd
}

// printLog writes the last tail lines (all when negative) of path to out, and
// with follow whatever is added until ctx ends.
func printLog(ctx context.Context, path string, out io.Writer, tail int, follow bool) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("no log at %s: mend has not run in the background here (with --foreground it logs to its standard error)", path)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := watcher.Add(filepath.Dir(path)); err != nil {
		return err
	}
	if err := skipTo(file, tail); err != nil {
		return err
	}
	for {
		if _, err := io.Copy(out, file); err != nil || !follow {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-watcher.Events:
			if !ok {
				return nil
			}
		case err := <-watcher.Errors:
			return err
		}
	}
}

// skipTo leaves file where its last n lines begin.
func skipTo(file *os.File, n int) error {
	if n < 0 {
		return nil
	}
	starts := make([]int64, 1, 1024) // offsets at which lines begin
	reader, offset := bufio.NewReader(file), int64(0)
	for {
		line, err := reader.ReadSlice('\n')
		offset += int64(len(line))
		switch {
		case err == nil:
			starts = append(starts, offset)
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			if last := starts[len(starts)-1]; last == offset {
				starts = starts[:len(starts)-1] // no line begins at the end
			}
			from := offset
			if n > 0 && len(starts) > 0 {
				from = starts[max(0, len(starts)-n)]
			}
			_, err := file.Seek(from, io.SeekStart)
			return err
		default:
			return err
		}
	}
}

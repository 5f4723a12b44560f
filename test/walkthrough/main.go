package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// limit is for the whole walk: far more than it takes.
const limit = 15 * time.Minute

func main() {
	mend := flag.String("mend", "bin/mend", "the mend to walk with")
	examples := flag.String("examples", "examples", "directory with the documents' manifests")
	simulate := flag.Bool("simulate", false, "walk on the simulated runtime, without containers")
	flag.Parse()
	if err := run(*mend, *examples, *simulate); err != nil {
		fmt.Fprintln(os.Stderr, "walkthrough:", err)
		os.Exit(1)
	}
}

func run(mend, examples string, simulate bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	mend, err := filepath.Abs(mend)
	if err != nil {
		return err
	}
	examples, err = filepath.Abs(examples)
	if err != nil {
		return err
	}
	before, err := takeInventory()
	if err != nil {
		return err
	}
	w, err := newWorld(mend, examples, simulate)
	if err != nil {
		return err
	}
	walked := w.walk(ctx, allSteps())
	w.rest()
	if walked != nil {
		// Leave nothing behind after a failure either.
		w.explain()
		w.cleanUp()
		return walked
	}
	if err := os.RemoveAll(w.dir); err != nil {
		return err
	}
	if err := before.compare(ctx, w.names["instance"]); err != nil {
		return err
	}
	fmt.Printf("\nnothing is left: processes, mounts, interfaces, routes, rules, cgroups, files\n")
	fmt.Printf("%d commands, all as they should be, in %.1f s\n", w.walked, time.Since(w.began).Seconds())
	return nil
}

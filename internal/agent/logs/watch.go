package logs

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// watch tells followers that something changed in the directory of their file. The
// zero value is ready; it holds an inotify instance and a goroutine only while it
// has followers.
type watch struct {
	mu      sync.Mutex
	inotify *fsnotify.Watcher
	dirs    map[string]map[chan struct{}]struct{}
}

// add returns a channel that receives after changes beside path, and what ends that.
func (w *watch) add(path string) (changes <-chan struct{}, remove func(), err error) {
	dir := filepath.Dir(path)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inotify == nil {
		made, err := fsnotify.NewWatcher()
		if err != nil {
			return nil, nil, fmt.Errorf("failed to create fsnotify watcher: %w", err)
		}
		w.inotify = made
		w.dirs = map[string]map[chan struct{}]struct{}{}
		go w.run(made)
	}
	if w.dirs[dir] == nil {
		if err := w.inotify.Add(dir); err != nil {
			w.closeIfIdle()
			return nil, nil, fmt.Errorf("failed to watch directory %q: %w", dir, err)
		}
		w.dirs[dir] = map[chan struct{}]struct{}{}
	}
	told := make(chan struct{}, 1)
	w.dirs[dir][told] = struct{}{}
	return told, func() { w.remove(dir, told) }, nil
}

func (w *watch) remove(dir string, told chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.dirs[dir], told)
	if len(w.dirs[dir]) > 0 {
		return
	}
	delete(w.dirs, dir)
	// The directory may be gone already, and its watch with it.
	_ = w.inotify.Remove(dir)
	w.closeIfIdle()
}

func (w *watch) closeIfIdle() {
	if len(w.dirs) == 0 {
		w.inotify.Close()
		w.inotify = nil
	}
}

func (w *watch) run(inotify *fsnotify.Watcher) {
	for {
		select {
		case event, open := <-inotify.Events:
			if !open {
				return
			}
			w.tell(filepath.Dir(event.Name))
		case err, open := <-inotify.Errors:
			if !open {
				return
			}
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				w.tellAll() // who knows what was lost
			}
		}
	}
}

func (w *watch) tell(dir string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for told := range w.dirs[dir] {
		wake(told)
	}
}

func (w *watch) tellAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, followers := range w.dirs {
		for told := range followers {
			wake(told)
		}
	}
}

func wake(told chan struct{}) {
	select {
	case told <- struct{}{}:
	default:
	}
}

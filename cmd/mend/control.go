package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"mend/internal/app"
	"mend/internal/instance"
)

// order sends an order to the mend that runs and shows its steps until it is carried
// out. The error is os.ErrClosed when mend ended before it said so.
func order(ctx context.Context, out io.Writer, found instance.Instance, holder instance.Holder, path string, body io.Reader) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://mend/"+path, body)
	if err != nil {
		return err
	}
	response, err := app.ControlClient(found.ControlSocket()).Do(request)
	if err != nil {
		return unreachable(holder, err)
	}
	defer response.Body.Close()
	return app.Follow(response.Body, out, patience)
}

// unreachable says why a mend that runs cannot be asked.
func unreachable(holder instance.Holder, err error) error {
	if errors.Is(err, os.ErrPermission) {
		return errors.New("not root: run it with sudo")
	}
	return fmt.Errorf("mend (pid %d) does not answer: %w", holder.PID, err)
}

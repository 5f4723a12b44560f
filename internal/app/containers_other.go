//go:build !linux

package app

import (
	"context"
	"errors"

	"mend/internal/instance"
)

func newHost(*process) (machine, error) {
	return nil, errors.New("real containers need Linux; mend up --simulate N works here")
}

// EndLeftovers has nothing to end: no mend on this system left containers.
func EndLeftovers(context.Context, instance.Instance, Teller) error { return nil }

func purgeContainers(context.Context, instance.Instance) error { return nil }

package serviceaccount

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"mend/internal/loop"
)

// Name is the loop's name.
const Name = "serviceaccount"

// Declaration is the loop's row in app's list.
func Declaration() loop.Declaration {
	return loop.Declaration{
		Name:   Name,
		Reads:  []string{"namespaces", "serviceaccounts"},
		Writes: []string{"serviceaccounts:create(default)"},
		Build:  build,
	}
}

type controller struct {
	log        *slog.Logger
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
	accounts   corelisters.ServiceAccountLister
}

func build(env loop.Env) (*loop.Loop, error) {
	namespaces := env.Informers.Core().V1().Namespaces()
	accounts := env.Informers.Core().V1().ServiceAccounts()
	c := &controller{log: env.Log.With("loop", Name), client: env.Client, namespaces: namespaces.Lister(), accounts: accounts.Lister()}
	l := loop.New(loop.Options{Name: Name, Reconciler: c, Clock: env.Clock, Log: env.Log, Drive: env.Drive})
	byName := func(obj any) {
		if n, ok := obj.(*corev1.Namespace); ok {
			l.Add(n.Name)
		}
	}
	if _, err := namespaces.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    byName,
		UpdateFunc: func(_, obj any) { byName(obj) },
	}); err != nil {
		return nil, err
	}
	_, err := accounts.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(obj any) {
			if key, err := cache.DeletionHandlingObjectToName(obj); err == nil && key.Name == defaultName {
				l.Add(key.Namespace)
			}
		},
	})
	return l, err
}

// Sync looks at the namespace named key.
func (c *controller) Sync(ctx context.Context, key string) (time.Time, error) {
	return time.Time{}, c.apply(ctx, key, plan(c.observe(key)))
}

// observe reads from informers, whose listers fail only with NotFound.
func (c *controller) observe(namespace string) Observed {
	var o Observed
	if n, err := c.namespaces.Get(namespace); err == nil {
		o.Namespace = n
	}
	_, err := c.accounts.ServiceAccounts(namespace).Get(defaultName)
	o.HasAccount = err == nil
	return o
}

func (c *controller) apply(ctx context.Context, namespace string, p Plan) error {
	if p.Create == "" {
		return nil
	}
	c.log.Debug("create service account", "namespace", namespace, "name", p.Create, "why", p.Why)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: p.Create, Namespace: namespace}}
	_, err := c.client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{})
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		// The view lacks it still. Deleted before the next list, it never shows: no
		// event would tell.
		return loop.ErrStale
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil // a namespace that has gone, or is going, needs none
	}
	return fmt.Errorf("create service account %s/%s: %w", namespace, p.Create, err)
}

package rootca

import (
	"context"
	"errors"
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
const Name = "rootca"

// Declaration is the loop's row in app's list. caPEM holds the certificates of
// the cluster's CA, in PEM.
func Declaration(caPEM []byte) loop.Declaration {
	return loop.Declaration{
		Name:   Name,
		Reads:  []string{"namespaces", "configmaps"},
		Writes: []string{"configmaps:" + configMapName},
		Build:  func(env loop.Env) (*loop.Loop, error) { return build(env, string(caPEM)) },
	}
}

type controller struct {
	log        *slog.Logger
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
	configMaps corelisters.ConfigMapLister
	ca         string
}

func build(env loop.Env, ca string) (*loop.Loop, error) {
	if ca == "" {
		return nil, errors.New("rootca: no CA certificate")
	}
	namespaces := env.Informers.Core().V1().Namespaces()
	configMaps := env.Informers.Core().V1().ConfigMaps()
	c := &controller{
		log: env.Log.With("loop", Name), client: env.Client, ca: ca,
		namespaces: namespaces.Lister(), configMaps: configMaps.Lister(),
	}
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
	byConfigMap := func(obj any) {
		if key, err := cache.DeletionHandlingObjectToName(obj); err == nil && key.Name == configMapName {
			l.Add(key.Namespace)
		}
	}
	_, err := configMaps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, obj any) { byConfigMap(obj) },
		DeleteFunc: byConfigMap,
	})
	return l, err
}

// Sync looks at the namespace named key.
func (c *controller) Sync(ctx context.Context, key string) (time.Time, error) {
	return time.Time{}, c.apply(ctx, plan(c.observe(key)))
}

// observe reads from informers, whose listers fail only with NotFound.
func (c *controller) observe(namespace string) Observed {
	o := Observed{CA: c.ca}
	if n, err := c.namespaces.Get(namespace); err == nil {
		o.Namespace = n
	}
	if m, err := c.configMaps.ConfigMaps(namespace).Get(configMapName); err == nil {
		o.ConfigMap = m
	}
	return o
}

func (c *controller) apply(ctx context.Context, p Plan) error {
	switch {
	case p.Create != nil:
		c.log.Debug("create config map", "namespace", p.Create.Namespace, "why", p.Why)
		_, err := c.client.CoreV1().ConfigMaps(p.Create.Namespace).Create(ctx, p.Create, metav1.CreateOptions{})
		if err == nil {
			// The view lacks it still. Deleted before the next list, it never shows: no
			// event would tell.
			return loop.ErrStale
		}
		return outcome("create", p.Create, err)
	case p.Update != nil:
		c.log.Info("repair config map", "namespace", p.Update.Namespace, "why", p.Why)
		_, err := c.client.CoreV1().ConfigMaps(p.Update.Namespace).Update(ctx, p.Update, metav1.UpdateOptions{})
		return outcome("update", p.Update, err)
	case p.Delete != nil:
		c.log.Info("delete config map", "namespace", p.Delete.Namespace, "why", p.Why)
		opts := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.Delete.UID, ResourceVersion: &p.Delete.ResourceVersion}}
		err := c.client.CoreV1().ConfigMaps(p.Delete.Namespace).Delete(ctx, p.Delete.Name, opts)
		return outcome("delete", p.Delete, err)
	}
	return nil
}

// outcome: what another writer has done meanwhile arrives as an event, and a
// namespace that has gone, or is going, needs nothing.
func outcome(what string, m *corev1.ConfigMap, err error) error {
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err):
		return loop.ErrStale
	default:
		return fmt.Errorf("%s config map %s/%s: %w", what, m.Namespace, m.Name, err)
	}
}

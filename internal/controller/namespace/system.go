package namespace

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"mend/internal/loop"
)

// SystemName is the name of the loop that keeps the system namespaces.
const SystemName = "systemnamespaces"

// System are the namespaces that every cluster has.
var System = []string{metav1.NamespaceDefault, corev1.NamespaceNodeLease, metav1.NamespacePublic, metav1.NamespaceSystem}

// SystemDeclaration is the row of the loop that keeps the system namespaces:
// each is created when it is missing, at the start or after it was deleted.
// Upstream looks once a minute; this one is told.
func SystemDeclaration() loop.Declaration {
	return loop.Declaration{
		Name:   SystemName,
		Reads:  []string{"namespaces"},
		Writes: []string{"namespaces:create(system)"},
		Build:  buildSystem,
	}
}

type systemController struct {
	client kubernetes.Interface
	lister corelisters.NamespaceLister
}

func buildSystem(env loop.Env) (*loop.Loop, error) {
	namespaces := env.Informers.Core().V1().Namespaces()
	c := &systemController{client: env.Client, lister: namespaces.Lister()}
	l := loop.New(loop.Options{Name: SystemName, Reconciler: c, Workers: 1, Clock: env.Clock, Log: env.Log, Drive: env.Drive})
	_, err := namespaces.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(obj any) {
			if key, err := cache.DeletionHandlingObjectToName(obj); err == nil && slices.Contains(System, key.Name) {
				l.Add(key.Name)
			}
		},
	})
	for _, name := range System {
		l.Add(name)
	}
	return l, err
}

// Sync creates the namespace named key if it is missing. One that is being
// deleted is left alone until it is gone.
func (c *systemController) Sync(ctx context.Context, key string) (time.Time, error) {
	_, err := c.lister.Get(key)
	if !planCreate(key, apierrors.IsNotFound(err)) {
		return time.Time{}, nil
	}
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key}}
	_, err = c.client.CoreV1().Namespaces().Create(ctx, n, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return time.Time{}, fmt.Errorf("create namespace %s: %w", key, err)
	}
	return time.Time{}, nil
}

// planCreate is all there is to decide.
func planCreate(name string, isMissing bool) bool { return isMissing && slices.Contains(System, name) }

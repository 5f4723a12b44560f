package apiserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	etcdkubernetes "go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/utils/clock"
)

// keyPrefix is the root of every key, as upstream's, so that etcd tools and
// people find what they expect.
const keyPrefix = "/registry"

// backend builds the storage of every kind on one in-process etcd client. The
// factory in k8s.io/apiserver dials by itself and cannot be used.
type backend struct {
	client    *etcdkubernetes.Client
	compactor interface {
		CompactRevision() int64
		Stop()
	}
}

func newBackend(client *clientv3.Client, compactionInterval time.Duration) *backend {
	kubernetesClient := &etcdkubernetes.Client{Client: client}
	kubernetesClient.Kubernetes = kubernetesClient
	b := &backend{
		client:    kubernetesClient,
		compactor: etcd3.NewCompactor(client, compactionInterval, clock.RealClock{}, nil),
	}
	// Consistent reads from the watch cache need etcd's progress notifications.
	// The check asks each endpoint for its version; an in-process client has none.
	etcdfeature.DefaultFeatureSupportChecker.CheckClient(client.Ctx(), inProcessEndpoint{client}, storage.RequestWatchProgress)
	return b
}

type inProcessEndpoint struct{ *clientv3.Client }

// Endpoints names the one member.
func (inProcessEndpoint) Endpoints() []string { return []string{"in-process"} }

func (b *backend) close() { b.compactor.Stop() }

// restOptions are the storage options of one kind.
type restOptions struct {
	backend *backend
	kind    *kind
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o restOptions) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := storagebackend.NewDefaultConfig(keyPrefix, nil)
	codec, versioner, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
		StorageMediaType:  runtime.ContentTypeProtobuf,
		StorageSerializer: legacyscheme.Codecs,
		StorageVersion:    o.kind.groupVersion(),
		MemoryVersion:     schema.GroupVersion{Group: o.kind.group, Version: runtime.APIVersionInternal},
		Config:            *config,
	})
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("storage codec of %s: %w", resource, err)
	}
	config.Codec, config.EncodeVersioner = codec, versioner
	prefix := o.kind.keyPrefix
	if prefix == "" {
		prefix = o.kind.plural
	}
	return generic.RESTOptions{
		StorageConfig:           config.ForResource(resource),
		Decorator:               o.decorate,
		EnableGarbageCollection: true,
		DeleteCollectionWorkers: 4,
		ResourcePrefix:          prefix,
		CountMetricPollPeriod:   time.Minute,
	}, nil
}

// decorate opens the kind's storage: etcd, and the watch cache above it.
func (o restOptions) decorate(
	config *storagebackend.ConfigForResource,
	resourcePrefix string,
	keyFunc func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object,
	attributes storage.AttrFunc,
	triggers storage.IndexerFuncs,
	indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	versioner := storage.APIObjectVersioner{}
	raw, err := etcd3.New(o.backend.client, o.backend.compactor, config.Codec, newFunc, newListFunc,
		config.Prefix, resourcePrefix, config.GroupResource, identity.NewEncryptCheckTransformer(),
		config.LeaseManagerConfig, etcd3.NewDefaultDecoder(config.Codec, versioner), versioner)
	if err != nil {
		return nil, nil, err
	}
	if o.kind.uncached {
		return raw, sync.OnceFunc(raw.Close), nil
	}
	cached, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage:             raw,
		Versioner:           versioner,
		GroupResource:       config.GroupResource,
		EventsHistoryWindow: config.EventsHistoryWindow,
		ResourcePrefix:      resourcePrefix,
		KeyFunc:             keyFunc,
		NewFunc:             newFunc,
		NewListFunc:         newListFunc,
		GetAttrsFunc:        attributes,
		IndexerFuncs:        triggers,
		Indexers:            indexers,
		Codec:               config.Codec,
	})
	if err != nil {
		raw.Close()
		return nil, nil, err
	}
	delegator := cacher.NewCacheDelegator(cached, raw)
	destroy := sync.OnceFunc(func() {
		delegator.Stop()
		cached.Stop()
		raw.Close()
	})
	return delegator, destroy, nil
}

// waitReady waits until a storage serves from its watch cache.
func waitReady(ctx context.Context, check func() error) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

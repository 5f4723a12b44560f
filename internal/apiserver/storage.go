package apiserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	etcdkubernetes "go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc/metadata"
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
	client    *clientv3.Client
	compactor interface {
		CompactRevision() int64
		Stop()
	}
}

func newBackend(client *clientv3.Client, compactionInterval time.Duration) *backend {
	b := &backend{
		client:    client,
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

// clientFor is the shared client with watches of its own for one kind.
//
// etcd notifies the progress of a whole stream of watches, and does not while one
// of them waits for a revision that does not exist yet, as each new one does. In
// one stream the watch of a kind that is starting would keep the reads of all
// others waiting until somebody writes.
func (b *backend) clientFor(k *kind) *etcdkubernetes.Client {
	own := clientv3.NewCtxClient(b.client.Ctx(), clientv3.WithZapLogger(b.client.GetLogger()))
	own.KV, own.Lease, own.Cluster, own.Auth, own.Maintenance = b.client.KV, b.client.Lease, b.client.Cluster, b.client.Auth, b.client.Maintenance
	own.Watcher = kindWatcher{b.client.Watcher, k.group + "/" + k.plural}
	client := &etcdkubernetes.Client{Client: own}
	client.Kubernetes = client
	return client
}

// kindWatcher marks its requests, because etcd's client joins watches with equal
// metadata to one stream.
type kindWatcher struct {
	clientv3.Watcher
	kind string
}

func (w kindWatcher) mark(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "kind", w.kind)
}

// Watch implements clientv3.Watcher.
func (w kindWatcher) Watch(ctx context.Context, key string, options ...clientv3.OpOption) clientv3.WatchChan {
	return w.Watcher.Watch(w.mark(ctx), key, options...)
}

// RequestProgress implements clientv3.Watcher.
func (w kindWatcher) RequestProgress(ctx context.Context) error {
	return w.Watcher.RequestProgress(w.mark(ctx))
}

// eagerClock shortens one wait of the watch cache: it asks etcd for its progress
// only every 100 ms while a read waits for it, which is meant for an etcd that
// many servers ask over the network. Ours answers within microseconds, and a
// second list of a quiet kind would wait for the rest of the period.
type eagerClock struct{ clock.RealClock }

const (
	upstreamProgressPeriod = 100 * time.Millisecond
	progressPeriod         = 2 * time.Millisecond
)

// NewTimer implements clock.Clock.
func (c eagerClock) NewTimer(d time.Duration) clock.Timer {
	if d != upstreamProgressPeriod {
		return c.RealClock.NewTimer(d)
	}
	return eagerTimer{c.RealClock.NewTimer(progressPeriod)}
}

type eagerTimer struct{ clock.Timer }

// Reset implements clock.Timer.
func (t eagerTimer) Reset(d time.Duration) bool {
	if d == upstreamProgressPeriod {
		d = progressPeriod
	}
	return t.Timer.Reset(d)
}

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
	if o.kind.name == "Pod" {
		config.Codec = newSharingCodec(codec)
	}
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
	raw, err := etcd3.New(o.backend.clientFor(o.kind), o.backend.compactor, config.Codec, newFunc, newListFunc,
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
		Clock:               eagerClock{},
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

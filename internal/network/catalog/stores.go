package catalog

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
)

const (
	servicesList = iota
	slicesList
)

// serviceStore is where the reflector of Services puts what it reads.
type serviceStore struct{ *Catalog }

func (s serviceStore) put(service *v1.Service) {
	service.ManagedFields = nil
	byName := s.services[service.Namespace]
	if byName == nil {
		byName = map[string]*v1.Service{}
		s.services[service.Namespace] = byName
	}
	byName[service.Name] = service
	s.changed(Key{Namespace: service.Namespace, Name: service.Name})
}

func (s serviceStore) remove(key Key) {
	delete(s.services[key.Namespace], key.Name)
	if len(s.services[key.Namespace]) == 0 {
		delete(s.services, key.Namespace)
	}
	s.changed(key)
}

func (s serviceStore) Add(obj any) error {
	service, ok := obj.(*v1.Service)
	if !ok {
		return fmt.Errorf("not a Service: %T", obj)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(service)
	return nil
}

func (s serviceStore) Update(obj any) error { return s.Add(obj) }

func (s serviceStore) Delete(obj any) error {
	service, ok := obj.(*v1.Service)
	if !ok {
		return fmt.Errorf("not a Service: %T", obj)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(Key{Namespace: service.Namespace, Name: service.Name})
	return nil
}

// Replace takes a list. What did not change is no change.
func (s serviceStore) Replace(list []any, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := map[Key]bool{}
	for _, obj := range list {
		service, ok := obj.(*v1.Service)
		if !ok {
			return fmt.Errorf("not a Service: %T", obj)
		}
		there[Key{Namespace: service.Namespace, Name: service.Name}] = true
		if old := s.services[service.Namespace][service.Name]; old == nil || old.ResourceVersion != service.ResourceVersion {
			s.put(service)
		}
	}
	for namespace, services := range s.services {
		for name := range services {
			if key := (Key{Namespace: namespace, Name: name}); !there[key] {
				s.remove(key)
			}
		}
	}
	s.arrived(servicesList)
	return nil
}

func (s serviceStore) Resync() error { return nil }

// sliceStore is where the reflector of EndpointSlices puts what it reads.
type sliceStore struct{ *Catalog }

// serviceOf is the Service that a slice belongs to; false for one that carries no name.
func serviceOf(slice *discovery.EndpointSlice) (Key, bool) {
	name := slice.Labels[discovery.LabelServiceName]
	return Key{Namespace: slice.Namespace, Name: name}, name != ""
}

func (s sliceStore) put(slice *discovery.EndpointSlice) {
	slice.ManagedFields = nil
	id := Key{Namespace: slice.Namespace, Name: slice.Name}
	service, named := serviceOf(slice)
	if before, ok := s.owner[id]; ok && (!named || before != service) {
		s.remove(id)
	}
	if !named {
		return
	}
	if s.slices[service] == nil {
		s.slices[service] = map[string]*discovery.EndpointSlice{}
	}
	s.slices[service][slice.Name] = slice
	s.owner[id] = service
	s.changed(service)
}

func (s sliceStore) remove(id Key) {
	service, ok := s.owner[id]
	if !ok {
		return
	}
	delete(s.owner, id)
	delete(s.slices[service], id.Name)
	if len(s.slices[service]) == 0 {
		delete(s.slices, service)
	}
	s.changed(service)
}

func (s sliceStore) Add(obj any) error {
	slice, ok := obj.(*discovery.EndpointSlice)
	if !ok {
		return fmt.Errorf("not an EndpointSlice: %T", obj)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(slice)
	return s.reached(slice.ResourceVersion)
}

func (s sliceStore) Update(obj any) error { return s.Add(obj) }

func (s sliceStore) Delete(obj any) error {
	slice, ok := obj.(*discovery.EndpointSlice)
	if !ok {
		return fmt.Errorf("not an EndpointSlice: %T", obj)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(Key{Namespace: slice.Namespace, Name: slice.Name})
	return s.reached(slice.ResourceVersion)
}

func (s sliceStore) Replace(list []any, resourceVersion string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := map[Key]bool{}
	for _, obj := range list {
		slice, ok := obj.(*discovery.EndpointSlice)
		if !ok {
			return fmt.Errorf("not an EndpointSlice: %T", obj)
		}
		id := Key{Namespace: slice.Namespace, Name: slice.Name}
		there[id] = true
		if old := s.slices[s.owner[id]][slice.Name]; old == nil || old.ResourceVersion != slice.ResourceVersion {
			s.put(slice)
		}
	}
	for id := range s.owner {
		if !there[id] {
			s.remove(id)
		}
	}
	s.arrived(slicesList)
	return s.reached(resourceVersion)
}

func (s sliceStore) Resync() error { return nil }

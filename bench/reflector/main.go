// Program reflector keeps caches of jobs and queues by client-go's own Reflector, and checks what the reflector does to them.
//
//	reflector KUBECONFIG
//
// It prints one JSON object per line: first how it lists, then, for each line on stdin, its caches and counts. It ends when stdin
// is closed.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/features"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// resources are those of the group trainmaster.dev/v1 that are cached, in all namespaces.
var resources = []string{"jobs", "queues"}

// cached is what is kept of an object: its uid and its resource version.
type cached struct {
	UID     string `json:"uid"`
	Version string `json:"version"`
}

// counted is what the reflector has done to a store, and what of it should not have happened.
type counted struct {
	Added    int `json:"added"`
	Updated  int `json:"updated"`
	Deleted  int `json:"deleted"`
	Replaced int `json:"replaced"`
	// Backwards counts objects that came with a lower version than the store has of them.
	Backwards int `json:"backwards"`
	// Doubled counts objects that were there twice: under two names, twice in a list, or once more after their deletion.
	Doubled int `json:"doubled"`
	// AddedAgain counts objects of the store that a watch added, DeletedAgain those that it deleted and that were not in the store.
	AddedAgain   int `json:"addedAgain"`
	DeletedAgain int `json:"deletedAgain"`
	Lists        int `json:"lists"`
	// Watches counts those that began; StreamedLists those of them that began with all objects, instead of a list.
	Watches       int `json:"watches"`
	StreamedLists int `json:"streamedLists"`
}

// checkedStore is a store of a reflector that counts: of objects by namespace and name, and of their names by uid.
type checkedStore struct {
	mutex   sync.Mutex
	objects map[string]cached
	keys    map[string]string
	gone    map[string]bool
	counts  counted
}

func newStore() *checkedStore {
	return &checkedStore{objects: map[string]cached{}, keys: map[string]string{}, gone: map[string]bool{}}
}

func (s *checkedStore) read(obj interface{}) (string, cached, error) {
	object, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return "", cached{}, fmt.Errorf("no object with metadata: %T", obj)
	}
	key, err := cache.MetaNamespaceKeyFunc(object)
	return key, cached{string(object.GetUID()), object.GetResourceVersion()}, err
}

// check counts what is wrong with an object that comes into the store, and returns whether the store has it already.
func (s *checkedStore) check(key string, found cached) bool {
	before, ok := s.objects[key]
	if ok && before.UID == found.UID {
		old, errOld := strconv.ParseUint(before.Version, 10, 64)
		now, errNow := strconv.ParseUint(found.Version, 10, 64)
		if errOld != nil || errNow != nil || now < old {
			s.counts.Backwards++
		}
		return true
	}
	if _, isNamed := s.keys[found.UID]; isNamed || s.gone[found.UID] {
		s.counts.Doubled++
	}
	return false
}

func (s *checkedStore) put(key string, found cached) {
	if before, ok := s.objects[key]; ok && before.UID != found.UID {
		s.remove(key)
	}
	s.objects[key] = found
	s.keys[found.UID] = key
}

func (s *checkedStore) remove(key string) {
	uid := s.objects[key].UID
	delete(s.objects, key)
	delete(s.keys, uid)
	s.gone[uid] = true
}

func (s *checkedStore) Add(obj interface{}) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	key, found, err := s.read(obj)
	if err != nil {
		return err
	}
	s.counts.Added++
	if s.check(key, found) {
		s.counts.AddedAgain++
	}
	s.put(key, found)
	return nil
}

func (s *checkedStore) Update(obj interface{}) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	key, found, err := s.read(obj)
	if err != nil {
		return err
	}
	s.counts.Updated++
	s.check(key, found)
	s.put(key, found)
	return nil
}

func (s *checkedStore) Delete(obj interface{}) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	key, found, err := s.read(obj)
	if err != nil {
		return err
	}
	s.counts.Deleted++
	if before, ok := s.objects[key]; !ok || before.UID != found.UID {
		s.counts.DeletedAgain++
		s.gone[found.UID] = true
		return nil
	}
	s.check(key, found)
	s.remove(key)
	return nil
}

func (s *checkedStore) Replace(list []interface{}, _ string) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.counts.Replaced++
	listed := make(map[string]bool, len(list))
	for _, obj := range list {
		key, found, err := s.read(obj)
		if err != nil {
			return err
		}
		if listed[key] {
			s.counts.Doubled++
		}
		listed[key] = true
		s.check(key, found)
		s.put(key, found)
	}
	for key := range s.objects {
		if !listed[key] {
			s.remove(key)
		}
	}
	return nil
}

func (s *checkedStore) Resync() error { return nil }

func (s *checkedStore) count(change func(*counted)) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	change(&s.counts)
}

func (s *checkedStore) state() map[string]interface{} {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	objects := make(map[string]cached, len(s.objects))
	for key, one := range s.objects {
		objects[key] = one
	}
	return map[string]interface{}{"counts": s.counts, "objects": objects}
}

// listerWatcher lists and watches a resource by the dynamic client with the options that the reflector chooses.
func listerWatcher(client dynamic.NamespaceableResourceInterface, store *checkedStore) cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			store.count(func(counts *counted) { counts.Lists++ })
			return client.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			store.count(func(counts *counted) {
				counts.Watches++
				if options.SendInitialEvents != nil && *options.SendInitialEvents {
					counts.StreamedLists++
				}
			})
			return client.Watch(ctx, options)
		},
	}
}

// configOf reads a kubeconfig. Its token is sent over plain HTTP, too, which kubectl does not do.
func configOf(path string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	read, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, err
	}
	if used, ok := read.Contexts[read.CurrentContext]; ok && config.BearerToken == "" {
		if user, ok := read.AuthInfos[used.AuthInfo]; ok {
			config.BearerToken = user.Token
		}
	}
	return config, nil
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: reflector KUBECONFIG")
	}
	config, err := configOf(os.Args[1])
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	out := json.NewEncoder(os.Stdout)
	streams := features.FeatureGates().Enabled(features.WatchListClient)
	if err := out.Encode(map[string]interface{}{"watchList": streams}); err != nil {
		return err
	}
	stores := map[string]*checkedStore{}
	for _, name := range resources {
		store := newStore()
		stores[name] = store
		resource := schema.GroupVersionResource{Group: "trainmaster.dev", Version: "v1", Resource: name}
		source := listerWatcher(client.Resource(resource), store)
		reflector := cache.NewReflector(source, &unstructured.Unstructured{}, store, 0)
		go reflector.RunWithContext(ctx)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		states := map[string]interface{}{}
		for name, store := range stores {
			states[name] = store.state()
		}
		if err := out.Encode(states); err != nil {
			return err
		}
	}
	return lines.Err()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

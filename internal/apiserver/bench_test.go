package apiserver_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"mend/internal/testkit"
)

// Without fsync: what the handler chain, the strategies and etcd cost.
func BenchmarkInProcess(b *testing.B) {
	s := testkit.StartAPIServer(b)
	client, err := kubernetes.NewForConfig(s.ClientConfig("bench"))
	if err != nil {
		b.Fatal(err)
	}
	pods := client.CoreV1().Pods("default")
	if _, err := pods.Create(b.Context(), pod("a"), metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	var made atomic.Int64
	run := func(name string, f func() error) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := f(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
	run("CreatePod", func() error {
		_, err := pods.Create(b.Context(), pod(fmt.Sprint("p", made.Add(1))), metav1.CreateOptions{})
		return err
	})
	run("GetPod", func() error {
		_, err := pods.Get(b.Context(), "a", metav1.GetOptions{})
		return err
	})
	run("GetPodCached", func() error {
		_, err := pods.Get(b.Context(), "a", metav1.GetOptions{ResourceVersion: "0"})
		return err
	})
	run("ListQuietKind", func() error {
		_, err := client.CoreV1().Secrets("default").List(b.Context(), metav1.ListOptions{})
		return err
	})
	run("CreateEvent", func() error {
		_, err := client.CoreV1().Events("default").Create(b.Context(), &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("e", made.Add(1))}, InvolvedObject: corev1.ObjectReference{Namespace: "default", Name: "a"},
		}, metav1.CreateOptions{})
		return err
	})
}

package containerd

import (
	"context"
	"errors"
	"fmt"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// endHalfStarted ends the processes of containers that containerd counts as ended.
//
// A mend that is killed takes back its requests. A start that is taken back between
// the making of the container's process and the first look at it ends as a failed one
// (StartError), but the process stays, and with it neither the container nor its
// sandbox could ever be removed.
func (s *Supervisor) endHalfStarted(ctx context.Context) error {
	conn, err := dial(s.Endpoint())
	if err != nil {
		return err
	}
	defer conn.Close()
	listed, err := runtimeapi.NewRuntimeServiceClient(conn).ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_EXITED}},
	})
	if err != nil {
		return fmt.Errorf("list ended containers: %w", err)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
	client := tasks.NewTasksClient(conn)
	var errs error
	for _, container := range listed.GetContainers() {
		id := container.GetId()
		found, err := client.Get(ctx, &tasks.GetRequest{ContainerID: id})
		if err != nil || found.GetProcess() == nil {
			continue // as it should be: what has ended has no task
		}
		s.cfg.Log.Warn("ending the process of a container that an earlier mend was starting when it was killed", "container", id, "pid", found.GetProcess().GetPid())
		errs = errors.Join(errs, endTask(ctx, client, id, found.GetProcess().GetStatus()))
	}
	return errs
}

// endTask kills all of a task, unless it has ended, and deletes it.
func endTask(ctx context.Context, client tasks.TasksClient, id string, status task.Status) error {
	if status != task.Status_STOPPED {
		_, err := client.Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(unix.SIGKILL), All: true})
		if notFoundIsFine(err) != nil {
			return fmt.Errorf("end the process of container %s: %w", id, err)
		}
		if _, err := client.Wait(ctx, &tasks.WaitRequest{ContainerID: id}); notFoundIsFine(err) != nil {
			return fmt.Errorf("wait for the process of container %s: %w", id, err)
		}
	}
	_, err := client.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
	return notFoundIsFine(err)
}

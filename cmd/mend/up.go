package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"mend/internal/app"
	"mend/internal/doctor"
	"mend/internal/instance"
)

const (
	defaultAPIPort = 6443
	// patience is how long a step may take before a person is told of it.
	patience = time.Second
	// notifyFD is where a mend in the background tells its parent what it does.
	notifyFD = 3
)

type upOptions struct {
	*options
	apiPort         int
	foreground      bool
	kubeconfig      string
	simulate        int
	behaviour       string
	runtimeEndpoint string
	nodeName        string
	cpus            int
	confirmTraffic  bool
	ipFamilies      string
	eventTTL        time.Duration
	notify          bool
	verbose         bool
}

func newUp(opts *options) *cobra.Command {
	up := &upOptions{options: opts}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start mend and return when the node is Ready",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if up.simulate > 0 {
				up.simulated(cmd)
			}
			if err := up.validate(); err != nil {
				return err
			}
			return up.run(cmd)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&up.apiPort, "api-port", defaultAPIPort, "port of 127.0.0.1 that the API listens on; 0 takes a free one")
	flags.BoolVar(&up.foreground, "foreground", false, "stay, and log to standard error: for systemd and containers")
	flags.StringVar(&up.kubeconfig, "kubeconfig", "", "write the kubeconfig to this file instead of ~/.kube/mend")
	flags.IntVar(&up.simulate, "simulate", 0, "run this many simulated nodes instead of containers; needs no root")
	flags.StringVar(&up.behaviour, "behaviour", "", behaviourUsage)
	flags.StringVar(&up.runtimeEndpoint, "runtime-endpoint", "", "CRI socket of a runtime of your own, instead of the built-in containerd")
	flags.StringVar(&up.nodeName, "node-name", "", "name of this node; the host's name by default")
	flags.IntVar(&up.cpus, "cpus", 0, "CPUs that the node offers to Pods, however many it has; limits still hold. 0 offers those it has")
	flags.BoolVar(&up.confirmTraffic, "confirm-traffic", true, "end a Pod only when no request reaches it any more, and count a new one as available only when requests do; =false does neither, as Kubernetes' own components")
	flags.StringVar(&up.ipFamilies, "ip-families", "", "IPv4, or IPv4,IPv6: the addresses that Pods and Services can have; by default both where this machine has IPv6")
	flags.DurationVar(&up.eventTTL, "event-ttl", app.EventTTL, "how long events are kept")
	flags.BoolVarP(&up.verbose, "verbose", "v", false, "log more")
	flags.BoolVar(&up.notify, "notify", false, "")
	_ = flags.MarkHidden("notify")
	return cmd
}

func (u *upOptions) validate() error {
	switch {
	case u.apiPort < 0 || u.apiPort > 65535:
		return fmt.Errorf("--api-port %d: must be between 0 and 65535", u.apiPort)
	case u.simulate < 0:
		return fmt.Errorf("--simulate %d: must not be negative", u.simulate)
	case u.simulate > app.MostSimulated:
		return fmt.Errorf("--simulate %d: must not be more than %d", u.simulate, app.MostSimulated)
	case u.cpus < 0:
		return fmt.Errorf("--cpus %d: must not be negative", u.cpus)
	case u.eventTTL < time.Second:
		return fmt.Errorf("--event-ttl %s: must be at least 1s", u.eventTTL)
	case u.simulate > 0 && u.runtimeEndpoint != "":
		return errors.New("--simulate and --runtime-endpoint exclude each other")
	case u.simulate == 0 && u.behaviour != "":
		return errors.New("--behaviour is for simulated nodes: give --simulate too")
	case u.ipFamilies == app.BothFamilies && (u.simulate > 0 || u.runtimeEndpoint != ""):
		return errors.New("--ip-families=IPv4,IPv6 needs mend's own Pod network: not with --simulate or --runtime-endpoint")
	}
	if _, _, err := readBehaviour(u.behaviour); err != nil {
		return err
	}
	if err := app.ValidateIPFamilies(u.ipFamilies); err != nil {
		return err
	}
	return app.ValidateNodeName(u.nodeName)
}

func (u *upOptions) run(cmd *cobra.Command) error {
	found, err := instance.Find(u.dataDir)
	switch {
	case err == nil:
		if holder, running, err := found.Running(); err != nil {
			return err
		} else if running {
			return sayRunning(cmd.OutOrStdout(), holder)
		}
	case !errors.Is(err, instance.ErrNotThere):
		return err
	}
	if err := u.examine(cmd.ErrOrStderr()); err != nil {
		return err
	}
	if u.foreground {
		return u.runHere(cmd.Context())
	}
	return u.runBehind(cmd)
}

func sayRunning(out io.Writer, holder instance.Holder) error {
	_, err := fmt.Fprintf(out, "mend is already running: %s (pid %d)\n", holder.Server, holder.PID)
	return err
}

// examine runs the doctor and stops at its findings.
func (u *upOptions) examine(out io.Writer) error {
	problems := doctor.Examine(doctor.Observe(doctor.Wanted{
		DataDir:    u.dataDir,
		APIAddress: apiAddress(u.apiPort),
		Containers: u.simulate == 0,
		OwnRuntime: u.runtimeEndpoint == "",
	}))
	if len(problems) == 0 {
		return nil
	}
	for _, problem := range problems[:len(problems)-1] {
		fmt.Fprintln(out, "mend:", problem)
	}
	return errors.New(problems[len(problems)-1].String())
}

// runHere is the daemon itself.
func (u *upOptions) runHere(ctx context.Context) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	tell := app.TellNotifySocket(os.Getenv("NOTIFY_SOCKET"))
	if u.notify {
		tell = app.TellTo(os.NewFile(notifyFD, "notify"))
	}
	_, behaviour, err := readBehaviour(u.behaviour)
	if err != nil {
		return err
	}
	err = app.Run(ctx, app.Config{
		DataDir:         u.dataDir,
		APIPort:         u.apiPort,
		Kubeconfig:      u.kubeconfig,
		Simulate:        u.simulate,
		Behaviour:       behaviour,
		RuntimeEndpoint: u.runtimeEndpoint,
		NodeName:        u.nodeName,
		CPUs:            u.cpus,
		ConfirmTraffic:  u.confirmTraffic,
		EventTTL:        u.eventTTL,
		IPFamilies:      u.ipFamilies,
		Verbose:         u.verbose,
		LogTo:           os.Stderr,
	}, tell)
	if err != nil {
		tell.Finish(err)
	}
	return err
}

// runBehind starts the daemon in a session of its own and waits until it is
// ready.
func (u *upOptions) runBehind(cmd *cobra.Command) error {
	made, err := instance.Create(u.dataDir)
	if err != nil {
		return err
	}
	began := time.Now()
	steps, pid, err := u.spawn(made)
	if err != nil {
		return err
	}
	defer steps.Close()
	switch err := app.Follow(steps, cmd.OutOrStdout(), patience); {
	case errors.Is(err, os.ErrClosed):
		return fmt.Errorf("mend ended while it started; its log says why: %s", made.LogFile())
	case err != nil:
		return err
	}
	return u.sayReady(cmd.OutOrStdout(), made, pid, time.Since(began))
}

func (u *upOptions) spawn(made instance.Instance) (steps *os.File, pid int, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, 0, err
	}
	if err := os.MkdirAll(made.Path("logs"), 0o700); err != nil {
		return nil, 0, err
	}
	log, err := os.OpenFile(made.LogFile(), os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, 0, err
	}
	defer log.Close()
	steps, theirs, err := os.Pipe()
	if err != nil {
		return nil, 0, err
	}
	defer theirs.Close()
	daemon := exec.Command(self, u.daemonArgs(made)...)
	daemon.Stdout, daemon.Stderr = log, log
	daemon.ExtraFiles = []*os.File{theirs} // becomes notifyFD
	daemon.Dir = "/"
	daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := daemon.Start(); err != nil {
		steps.Close()
		return nil, 0, err
	}
	pid = daemon.Process.Pid
	return steps, pid, daemon.Process.Release()
}

func (u *upOptions) daemonArgs(made instance.Instance) []string {
	args := []string{"up", "--foreground", "--notify",
		"--data-dir", made.Dir,
		"--api-port", strconv.Itoa(u.apiPort),
		"--simulate", strconv.Itoa(u.simulate),
		"--cpus", strconv.Itoa(u.cpus),
		"--confirm-traffic=" + strconv.FormatBool(u.confirmTraffic),
		"--event-ttl", u.eventTTL.String()}
	for flag, value := range map[string]string{
		"--behaviour": u.behaviour, "--kubeconfig": u.kubeconfig, "--runtime-endpoint": u.runtimeEndpoint, "--node-name": u.nodeName,
		"--ip-families": u.ipFamilies,
	} {
		if value != "" {
			args = append(args, flag, absoluteIfFile(flag, value))
		}
	}
	if u.verbose {
		args = append(args, "--verbose")
	}
	return args
}

func (u *upOptions) sayReady(out io.Writer, made instance.Instance, pid int, took time.Duration) error {
	holder, _, err := made.Running()
	if err != nil {
		return err
	}
	lines := []string{
		fmt.Sprintf("mend is ready after %.1f s: %s (pid %d)", took.Seconds(), holder.Server, pid),
		"next: " + u.nextCommand(),
	}
	_, err = fmt.Fprintln(out, strings.Join(lines, "\n"))
	return err
}

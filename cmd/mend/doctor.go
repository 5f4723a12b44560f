package main

import (
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/cobra"

	"mend/internal/doctor"
	"mend/internal/instance"
)

func newDoctor(opts *options) *cobra.Command {
	var port int
	var simulate bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what keeps this machine from running mend, and how to mend it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if simulate {
				opts.simulated(cmd)
			}
			want := doctor.Wanted{DataDir: opts.dataDir, APIAddress: apiAddress(port), Containers: !simulate, OwnRuntime: true}
			if found, err := instance.Find(opts.dataDir); err == nil {
				if _, running, _ := found.Running(); running {
					want.APIAddress = apiAddress(0) // its own port is taken by itself
				}
			}
			return report(cmd, doctor.Examine(doctor.Observe(want)))
		},
	}
	cmd.Flags().IntVar(&port, "api-port", defaultAPIPort, "port that the API is to listen on")
	cmd.Flags().BoolVar(&simulate, "simulate", false, "for simulated nodes, which need neither root nor Linux")
	return cmd
}

// report prints one line per problem; any problem is a failure.
func report(cmd *cobra.Command, problems []doctor.Problem) error {
	if len(problems) == 0 {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "nothing is in the way: mend can run here")
		return err
	}
	for _, problem := range problems {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), problem); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s in the way", count(len(problems), "thing is", "things are"))
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

func apiAddress(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"mend/internal/app"
	"mend/internal/instance"
	"mend/internal/runtime/image"
)

const imageLimit = 10 * time.Minute

func newImage(opts *options) *cobra.Command {
	cmd := &cobra.Command{Use: "image", Short: "Images without a registry: import, list, remove"}
	cmd.AddCommand(newImageImport(opts), newImageList(opts), newImageRemove(opts))
	return cmd
}

func newImageImport(opts *options) *cobra.Command {
	var samples bool
	cmd := &cobra.Command{
		Use:   "import [FILE...]",
		Short: "Import archives made by docker save or in OCI layout; - reads standard input",
		RunE: func(cmd *cobra.Command, files []string) error {
			if !samples && len(files) == 0 {
				return errors.New("name a file to import, or give --samples")
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), imageLimit)
			defer cancel()
			found, err := runningInstance(opts.dataDir)
			if err != nil {
				return err
			}
			client, err := connectImages(found)
			if err != nil {
				return err
			}
			defer client.Close()
			if samples {
				if err := enableSamples(ctx, cmd.OutOrStdout(), client, found); err != nil {
					return err
				}
			}
			return importFiles(ctx, cmd, client, files)
		},
	}
	cmd.Flags().BoolVar(&samples, "samples", false, "give mend's sample image the names that tutorials use (nginx, myrepo/web), for machines without a registry")
	return cmd
}

func enableSamples(ctx context.Context, out io.Writer, client *image.Client, found instance.Instance) error {
	names, err := client.EnableSamples(ctx, app.RegistryDir(found))
	for _, name := range names {
		fmt.Fprintf(out, "%s (a stand-in: mend's sample image under this name)\n", name)
	}
	return err
}

func importFiles(ctx context.Context, cmd *cobra.Command, client *image.Client, files []string) error {
	for _, path := range files {
		var archive io.Reader = cmd.InOrStdin()
		if path != "-" {
			file, err := os.Open(path)
			if err != nil {
				return err
			}
			defer file.Close()
			archive = file
		}
		names, err := client.Import(ctx, archive)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, name := range names {
			fmt.Fprintln(cmd.OutOrStdout(), name)
		}
	}
	return nil
}

func newImageList(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the images that are here",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := openImages(opts.dataDir)
			if err != nil {
				return err
			}
			defer client.Close()
			images, err := client.List(cmd.Context())
			if err != nil {
				return err
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
			fmt.Fprintln(table, "NAME\tDIGEST\tAGE\tNOTE")
			for _, one := range images {
				fmt.Fprintf(table, "%s\t%.19s\t%s\t%s\n", one.Name, one.Digest, time.Since(one.Created).Round(time.Second), imageNote(one))
			}
			return table.Flush()
		},
	}
}

func imageNote(one image.Image) string {
	switch {
	case one.StandIn:
		return "stand-in"
	case one.Pinned:
		return "pinned"
	}
	return ""
}

func newImageRemove(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "remove NAME...",
		Short: "Remove images by name",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			client, err := openImages(opts.dataDir)
			if err != nil {
				return err
			}
			defer client.Close()
			for _, name := range names {
				if err := client.Remove(cmd.Context(), name); err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "removed %s\n", name)
			}
			return nil
		},
	}
}

func openImages(dataDir string) (*image.Client, error) {
	found, err := runningInstance(dataDir)
	if err != nil {
		return nil, err
	}
	return connectImages(found)
}

func runningInstance(dataDir string) (instance.Instance, error) {
	found, err := instance.Find(dataDir)
	if err != nil {
		return found, err
	}
	_, running, err := found.Running()
	if err == nil && !running {
		err = errors.New("mend is not running; start it with: " + startCommand)
	}
	return found, err
}

// connectImages checks the way to containerd first, whose errors name a socket
// instead of what to do.
func connectImages(found instance.Instance) (*image.Client, error) {
	socket := filepath.Join(found.RunDir(), "containerd.sock")
	_, err := os.Stat(socket)
	switch {
	case errors.Is(err, os.ErrPermission):
		return nil, errors.New("not root: run it with sudo")
	case err != nil:
		return nil, errors.New("this mend has no container runtime of its own (--simulate or --runtime-endpoint)")
	}
	return image.Connect("unix://" + socket)
}

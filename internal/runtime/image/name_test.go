package image

import "testing"

func TestShortNamesAreCompleted(t *testing.T) {
	digest := "sha256:0ef93daf49f464d4edf2d394abb716830f55e7cf88476f8099a5fc7e45a5169f"
	for in, want := range map[string]string{
		"nginx":                    "docker.io/library/nginx:latest",
		"nginx:1.25":               "docker.io/library/nginx:1.25",
		"myrepo/web:1.0":           "docker.io/myrepo/web:1.0",
		"docker.io/library/nginx":  "docker.io/library/nginx:latest",
		"mend.local/web:2.0":       "mend.local/web:2.0",
		"localhost:5000/a/b":       "localhost:5000/a/b:latest",
		"nginx@" + digest:          "docker.io/library/nginx@" + digest,
		"mend.local/web@" + digest: "mend.local/web@" + digest,
	} {
		if got, err := Complete(in); err != nil || got != want {
			t.Errorf("Complete(%q) is %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "Nginx", "nginx:", "a b", "nginx@sha256:short"} {
		if got, err := Complete(in); err == nil {
			t.Errorf("Complete(%q) is %q, want an error", in, got)
		}
	}
}

func TestEverySampleStandsForABuiltinImageUnderACompleteName(t *testing.T) {
	for name, from := range Samples {
		if full, err := Complete(name); err != nil || full != name {
			t.Errorf("the sample %s is not complete: %q, %v", name, full, err)
		}
		if !isBuiltin(from) || isBuiltin(name) {
			t.Errorf("the sample %s stands for %s", name, from)
		}
		if !isSampleName(name) {
			t.Errorf("%s is not recognised as a sample", name)
		}
	}
	for name, want := range map[string]bool{
		"docker.io/library/nginx@sha256:00": true, "docker.io/library/nginx:1.99": false, "docker.io/library/redis@sha256:00": false,
	} {
		if got := isSampleName(name); got != want {
			t.Errorf("isSampleName(%s) is %v", name, got)
		}
	}
}

package sim

// minimiseTries bounds the runs spent on cutting a failure down.
const minimiseTries = 250

// Minimise returns the same failure with as many steps left out as it finds, with
// its trace. Another failure of the same run would do as well: it is a bug too.
func Minimise(o Options) Result {
	broken := Run(o)
	if broken.Broken == "" {
		return broken
	}
	if o.Rounds == 0 {
		o.Rounds = defaultRounds
	}
	if o.Steps == 0 {
		o.Steps = defaultSteps
	}
	o.Rounds = (max(broken.Step, 1) + o.Steps - 1) / o.Steps
	tries := 0
	for size := o.Steps * o.Rounds; size > 0 && tries < minimiseTries; size /= 2 {
		for from := 1; from <= o.Steps*o.Rounds && tries < minimiseTries; from += size {
			fewer := o
			fewer.Skip = map[int]bool{}
			for step := range o.Skip {
				fewer.Skip[step] = true
			}
			for step := from; step < from+size; step++ {
				fewer.Skip[step] = true
			}
			if len(fewer.Skip) == len(o.Skip) {
				continue
			}
			tries++
			if Run(fewer).Broken != "" {
				o = fewer
			}
		}
	}
	o.Trace = true
	return Run(o)
}

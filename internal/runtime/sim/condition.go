package sim

import "strconv"

// test knows -e -f -d -s -r -x FILE, -n -z TEXT, = != and -eq -ne -lt -gt -le -ge.
func test(c *call) int {
	args := c.args
	if len(args) > 0 && args[len(args)-1] == "]" {
		args = args[:len(args)-1]
	}
	if len(args) > 0 && args[0] == "!" {
		return 1 - test(&call{shell: c.shell, args: args[1:]})
	}
	truth := false
	switch len(args) {
	case 1:
		truth = args[0] != ""
	case 2:
		truth = c.testOne(args[0], args[1])
	case 3:
		truth = testTwo(args[0], args[1], args[2])
	}
	if truth {
		return 0
	}
	return 1
}

func (c *call) testOne(operator, operand string) bool {
	switch operator {
	case "-n":
		return operand != ""
	case "-z":
		return operand == ""
	case "-d":
		_, err := c.shell.files.list(operand)
		return err == nil
	case "-s":
		content, err := c.shell.files.read(operand)
		return err == nil && len(content) > 0
	case "-f":
		_, err := c.shell.files.read(operand)
		return err == nil
	case "-e", "-r", "-x":
		return c.shell.files.exists(operand)
	}
	return false
}

func testTwo(left, operator, right string) bool {
	a, _ := strconv.Atoi(left)
	b, _ := strconv.Atoi(right)
	switch operator {
	case "=", "==":
		return left == right
	case "!=":
		return left != right
	case "-eq":
		return a == b
	case "-ne":
		return a != b
	case "-lt":
		return a < b
	case "-gt":
		return a > b
	case "-le":
		return a <= b
	case "-ge":
		return a >= b
	}
	return false
}

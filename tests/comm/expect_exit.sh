#!/bin/sh
# expect_exit.sh CODE COMMAND...: succeeds when the command ends with that exit code.
expected=$1
shift
"$@"
code=$?
echo "exit code $code, expected $expected"
test "$code" -eq "$expected"

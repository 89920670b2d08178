# The host's side of terminal-bench.yaml: hand out a task, and verify its answer.
#
#   terminal_bench.sh lay-out    write task.txt, what the agent gets to see
#   terminal_bench.sh verify     exit 0 if answer.txt is right, else 1, and say why in verifier.log
#
# It stands where the tests of a benchmark's task would. The answer is the checksum of the task's name, as `cksum` has it.
set -eu

checksum() {
    set -- $(printf '%s' "$1" | cksum)
    echo "$1"
}

case "$1" in
lay-out)
    echo "Write the POSIX checksum (cksum) of the text $STATEM_VAR_TASK to answer.txt." > task.txt
    : >> repairs.log
    ;;
verify)
    read -r answer < answer.txt || :
    right=$(checksum "$STATEM_VAR_TASK")
    if [ "$answer" != "$right" ]; then
        echo "answer.txt says ${answer:-nothing}, and the checksum of $STATEM_VAR_TASK is another number" | tee verifier.log >&2
        exit 1
    fi
    ;;
*)
    echo "usage: terminal_bench.sh lay-out | verify" >&2
    exit 64
    ;;
esac

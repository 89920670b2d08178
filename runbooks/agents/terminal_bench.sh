# A stand-in for an agent in terminal-bench.sweep.yaml, whose results are known beforehand.
#
# How hard a task is, and how lucky a trial, are digits of checksums that anybody can compute:
#
#   difficulty = last digit of the checksum of TASK               printf '%s' chess-best-move | cksum
#   luck       = last digit of the checksum of TASK/REPETITION    printf '%s' chess-best-move/1 | cksum
#   lack       = difficulty - luck
#
#   lack        what it does                                                     the trial
#   0 or less   writes the right answer                                          passed
#   1 or 2      writes a wrong answer first, and mends it at so many repairs     passed
#   3 to 5      never mends it                                                   failed: gave-up
#   6 or 7      finds a gap in its plan again and again                          stuck: max_steps
#   8           writes a plan without steps, whatever it is told                 stuck: no_progress
#   9           hangs                                                            timeout: agent_timeout
#
# It is a shell script because it is started some thousand times: a shell starts in a millisecond.
set -eu

checksum() {
    set -- $(printf '%s' "$1" | cksum)
    echo "$1"
}

last_digit() {
    echo "${1#"${1%?}"}"
}

difficulty=$(last_digit "$(checksum "$STATEM_VAR_TASK")")
luck=$(last_digit "$(checksum "$STATEM_VAR_TASK/$STATEM_TRIAL")")
lack=$((difficulty - luck))

answer() {
    if [ "$1" -ge "$lack" ]; then
        checksum "$STATEM_VAR_TASK" > answer.txt
    else
        echo "no idea" > answer.txt
    fi
}

case "$STATEM_CURRENT" in
plan)
    if [ "$lack" -eq 8 ]; then
        echo "I will manage somehow." > plan.md
    else
        printf '%s\n' "1. Read task.txt." "2. Write answer.txt." > plan.md
    fi
    ;;
execute)
    case "$lack" in
    6 | 7)
        echo "It does not say how." > gap.md
        echo plan > "$STATEM_GOTO_FILE"
        ;;
    9) exec sleep 600 ;;
    *) answer 0 ;;
    esac
    ;;
repair)
    repairs=$(wc -l < repairs.log)
    answer "$((repairs))"
    ;;
esac
printf '{"input_tokens": 1000, "output_tokens": 100, "cost_usd": 0.001}' > "$STATEM_USAGE_FILE"

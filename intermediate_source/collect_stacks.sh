#!/bin/sh
# Writes the Python stacks of every rank on this host: sh collect_stacks.sh DIR [VARIABLE]
#
# Into DIR/pyspy_RANK.txt, one file per rank. VARIABLE is what tells a process its rank: RANK with
# torchrun, which is the default, or ROLE_RANK where the container itself sets RANK;
# SLURM_PROCID with srun alone, OMPI_COMM_WORLD_RANK with Open MPI.
# It needs py-spy, and the right to trace the processes: that of root, or of their owner where the
# system lets owners. Each process is stopped for a moment, and goes on.
out=${1:?"name a directory: sh collect_stacks.sh DIR"}
variable=${2:-RANK}
mkdir -p "$out" || exit 2

# The rank of a process that runs Python; nothing for any other.
rank_of() {
    program=$(readlink "/proc/$1/exe")
    case ${program##*/} in
        python*) tr '\0' '\n' <"/proc/$1/environ" | sed -n "s/^$variable=//p" | head -n 1 ;;
    esac
}

taken=0
for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    rank=$(rank_of "$pid" 2>/dev/null)
    [ -n "$rank" ] || continue
    # A rank's helpers, such as those that load data, inherit the variable. So their parent has it.
    parent=$(sed -n 's/^PPid:[^0-9]*//p' "$process/status" 2>/dev/null)
    [ -z "$(rank_of "$parent" 2>/dev/null)" ] || continue
    if stacks=$(py-spy dump --pid "$pid" 2>&1); then
        printf '%s\n' "$stacks" >"$out/pyspy_$rank.txt" && taken=$((taken + 1))
    else
        printf 'rank %s, process %s: %s\n' "$rank" "$pid" "$stacks" >&2
    fi
done
echo "$(uname -n): stacks of $taken ranks in $out"
[ "$taken" -gt 0 ]

# For the tables.sh of each task, which sets `task`: show NAME, then what `uotpool table` takes.
here=results/$task
bin=${BIN:-.venv/bin}
show() {
    name=$1
    shift
    for form in markdown csv; do
        ending=$form
        [ $form = markdown ] && ending=md
        "$bin/uotpool" table $task --store $here/runs.csv --format $form "$@" >$here/$name.$ending
    done
}

# A guest of a fleet runs this script at the end of its boot. The script reads requests from the
# second serial port, one per line, runs fio on the only virtio disk, and writes answers there.
#   run ARGUMENTS      -> MEASURED and fio's JSON
#   verify ARGUMENTS   -> VERIFIED and fio's JSON: fio has compared the data that it wrote
# shellcheck shell=bash
exec 3</dev/ttyS1
wrong() { echo "FAILED $*"; }
disk=
for directory in /sys/block/vd*; do disk=/dev/${directory##*/}; done
[ -b "$disk" ] || { wrong "the guest has no virtio disk"; exit 1; }
command -v fio >/dev/null || { wrong "the guest's image has no fio"; exit 1; }

# does WORD ARGUMENT...: runs fio.
does() {
    local word=$1 code=0
    shift
    rm -f /run/fio.json
    fio --name=guest --filename="$disk" --direct=1 --ioengine=libaio --group_reporting \
        --output=/run/fio.json --output-format=json+ "$@" >/run/fio.log 2>&1 || code=$?
    if [ $code != 0 ]; then
        wrong "fio ended with $code: $(grep -hm 1 -e verify -e error -e '^fio:' \
            /run/fio.log /run/fio.json)"
        return
    fi
    printf '%s ' "$word"
    sed -n '/^{/,$p' /run/fio.json | tr -d '\n\t'
    echo
}

echo "READY $(blockdev --getsize64 "$disk") $(uname -r)"
while read -r order arguments <&3; do
    # shellcheck disable=SC2086 # a list of words
    case $order in
    run) does MEASURED $arguments ;;
    verify) does VERIFIED $arguments ;;
    *) wrong "unknown request: $order" ;;
    esac
done

# quiet.sh on|off: pauses the lanes
if [ "$1" = on ]; then touch /tmp/quiet; if [ -e /tmp/lanes_on ]; then for i in $(seq 60); do [ -e /tmp/quieted ] && break; sleep .1; done; sleep 0.8; fi
else rm -f /tmp/quiet; fi
exit 0

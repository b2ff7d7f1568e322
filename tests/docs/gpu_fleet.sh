# Connects two simulated clusters, dc1 and dc2, with 32 GPUs each. For pages about GPUs: source tests/docs/gpu_fleet.sh
printf 'kind: Cluster\nname: %s\n---\n' dc1 dc2 | trainmaster apply -f - --yes
for name in dc1 dc2; do trainmaster keys make "agent-$name" --role agent --cluster "$name" >"$name.key"; done
cat >dc.yaml <<'END'
keyFile: "{name}.key"
clusters:
  - {name: dc1, groups: [{name: gpu, count: 4, resources: {cpu: "64", memory: 512Gi, nvidia.com/gpu: "8"}}]}
  - {name: dc2, groups: [{name: gpu, count: 4, resources: {cpu: "64", memory: 512Gi, nvidia.com/gpu: "8"}}]}
END
command trainmaster agent run --simulated dc.yaml --url "$UP_URL" >agent.log 2>&1 &
until [ "$(trainmaster clusters -o json | grep -c '"nvidia.com/gpu": "32"')" = 2 ]; do sleep 0.2; done

# gpu_jobs NAME QUEUE GPUS COUNT [OPTIONS] submits jobs that run until they are cancelled.
gpu_jobs() {
  for _ in $(seq "$4"); do
    trainmaster run --name "$1" --queue "$2" --gpus "$3" --label sim.trainmaster.dev/run-time=forever "${@:5}" -- true
  done
}

# until_running NAME COUNT waits until so many jobs of this name run.
until_running() {
  until [ "$(trainmaster jobs --name "$1" --state running -o id | wc -l)" = "$2" ]; do sleep 0.2; done
}

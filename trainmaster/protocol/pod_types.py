"""The types of a pod specification's fields as of Kubernetes 1.36, taken from the API server's OpenAPI document.

``tests/e2e/test_pod_types.py`` compares the table with a real API server. What values mean is not known here.

A field is ``name:kind``, with ``!`` where it is required. Kinds: the name of another type, ``[kind]`` for a list, ``A|B`` for one of
these words, or a scalar of ``pod_scalars.py``. ``any`` is judged elsewhere: the agent sets the field, or it is refused altogether.
"""

_TABLE = """
PodSpec = activeDeadlineSeconds:positive affinity:Affinity automountServiceAccountToken:bool containers:[Container]!
  dnsConfig:PodDNSConfig dnsPolicy:ClusterFirst|ClusterFirstWithHostNet|Default|None enableServiceLinks:bool
  ephemeralContainers:any hostAliases:[HostAlias] hostIPC:bool hostNetwork:bool hostPID:bool hostUsers:bool
  hostname:label hostnameOverride:name imagePullSecrets:[LocalObjectReference] initContainers:[Container] nodeName:any
  nodeSelector:labels os:PodOS overhead:resources preemptionPolicy:any priority:any priorityClassName:any
  readinessGates:[PodReadinessGate] resourceClaims:[PodResourceClaim] resources:ResourceRequirements
  restartPolicy:Always|Never|OnFailure runtimeClassName:name schedulerName:any schedulingGates:any schedulingGroup:any
  securityContext:PodSecurityContext serviceAccount:any serviceAccountName:any setHostnameAsFQDN:bool
  shareProcessNamespace:bool subdomain:label terminationGracePeriodSeconds:natural tolerations:[Toleration]
  topologySpreadConstraints:[TopologySpreadConstraint] volumes:[Volume]
Affinity = nodeAffinity:NodeAffinity podAffinity:PodAffinity podAntiAffinity:PodAntiAffinity
Container = args:[str] command:[str] env:[EnvVar] envFrom:[EnvFromSource] image:image!
  imagePullPolicy:Always|IfNotPresent|Never lifecycle:Lifecycle livenessProbe:Probe name:label! ports:[ContainerPort]
  readinessProbe:Probe resizePolicy:[ContainerResizePolicy] resources:ResourceRequirements
  restartPolicy:Always|Never|OnFailure restartPolicyRules:[ContainerRestartRule] securityContext:SecurityContext
  startupProbe:Probe stdin:bool stdinOnce:bool terminationMessagePath:str
  terminationMessagePolicy:FallbackToLogsOnError|File tty:bool volumeDevices:[VolumeDevice] volumeMounts:[VolumeMount]
  workingDir:str
PodDNSConfig = nameservers:[ip] options:[PodDNSConfigOption] searches:[domain]
HostAlias = hostnames:[name] ip:ip!
LocalObjectReference = name:name
PodOS = name:linux|windows!
PodReadinessGate = conditionType:labelkey!
PodResourceClaim = name:label! resourceClaimName:name resourceClaimTemplateName:name
ResourceRequirements = claims:[ResourceClaim] limits:resources requests:resources
PodSecurityContext = appArmorProfile:AppArmorProfile fsGroup:uid fsGroupChangePolicy:Always|OnRootMismatch
  runAsGroup:uid runAsNonRoot:bool runAsUser:uid seLinuxChangePolicy:MountOption|Recursive
  seLinuxOptions:SELinuxOptions seccompProfile:SeccompProfile supplementalGroups:[uid]
  supplementalGroupsPolicy:Merge|Strict sysctls:[Sysctl] windowsOptions:WindowsSecurityContextOptions
Toleration = effect:NoExecute|NoSchedule|PreferNoSchedule key:str operator:Equal|Exists tolerationSeconds:int64
  value:str
TopologySpreadConstraint = labelSelector:LabelSelector matchLabelKeys:[labelkey] maxSkew:positive! minDomains:positive
  nodeAffinityPolicy:Honor|Ignore nodeTaintsPolicy:Honor|Ignore topologyKey:labelkey!
  whenUnsatisfiable:DoNotSchedule|ScheduleAnyway!
Volume = awsElasticBlockStore:AWSElasticBlockStoreVolumeSource azureDisk:AzureDiskVolumeSource
  azureFile:AzureFileVolumeSource cephfs:CephFSVolumeSource cinder:CinderVolumeSource configMap:ConfigMapVolumeSource
  csi:CSIVolumeSource downwardAPI:DownwardAPIVolumeSource emptyDir:EmptyDirVolumeSource
  ephemeral:EphemeralVolumeSource fc:FCVolumeSource flexVolume:FlexVolumeSource flocker:FlockerVolumeSource
  gcePersistentDisk:GCEPersistentDiskVolumeSource gitRepo:GitRepoVolumeSource glusterfs:GlusterfsVolumeSource
  hostPath:any image:ImageVolumeSource iscsi:ISCSIVolumeSource name:label! nfs:NFSVolumeSource
  persistentVolumeClaim:PersistentVolumeClaimVolumeSource photonPersistentDisk:PhotonPersistentDiskVolumeSource
  portworxVolume:PortworxVolumeSource projected:ProjectedVolumeSource quobyte:QuobyteVolumeSource rbd:RBDVolumeSource
  scaleIO:ScaleIOVolumeSource secret:SecretVolumeSource storageos:StorageOSVolumeSource
  vsphereVolume:VsphereVirtualDiskVolumeSource
NodeAffinity = preferredDuringSchedulingIgnoredDuringExecution:[PreferredSchedulingTerm]
  requiredDuringSchedulingIgnoredDuringExecution:NodeSelector
PodAffinity = preferredDuringSchedulingIgnoredDuringExecution:[WeightedPodAffinityTerm]
  requiredDuringSchedulingIgnoredDuringExecution:[PodAffinityTerm]
PodAntiAffinity = preferredDuringSchedulingIgnoredDuringExecution:[WeightedPodAffinityTerm]
  requiredDuringSchedulingIgnoredDuringExecution:[PodAffinityTerm]
EnvVar = name:env! value:text valueFrom:EnvVarSource
EnvFromSource = configMapRef:ConfigMapEnvSource prefix:str secretRef:SecretEnvSource
Lifecycle = postStart:LifecycleHandler preStop:LifecycleHandler stopSignal:str
Probe = exec:ExecAction failureThreshold:natural grpc:GRPCAction httpGet:HTTPGetAction initialDelaySeconds:natural
  periodSeconds:natural successThreshold:natural tcpSocket:TCPSocketAction terminationGracePeriodSeconds:positive
  timeoutSeconds:natural
ContainerPort = containerPort:port! hostIP:str hostPort:natural name:portname protocol:SCTP|TCP|UDP
ContainerResizePolicy = resourceName:cpu|memory! restartPolicy:NotRequired|RestartContainer!
ContainerRestartRule = action:Restart|RestartAllContainers! exitCodes:ContainerRestartRuleOnExitCodes
SecurityContext = allowPrivilegeEscalation:bool appArmorProfile:AppArmorProfile capabilities:Capabilities
  privileged:bool procMount:Default|Unmasked readOnlyRootFilesystem:bool runAsGroup:uid runAsNonRoot:bool
  runAsUser:uid seLinuxOptions:SELinuxOptions seccompProfile:SeccompProfile
  windowsOptions:WindowsSecurityContextOptions
VolumeDevice = devicePath:str! name:label!
VolumeMount = mountPath:str! mountPropagation:Bidirectional|HostToContainer|None name:label! readOnly:bool
  recursiveReadOnly:Disabled|IfPossible|Enabled subPath:str subPathExpr:str
PodDNSConfigOption = name:str value:text
ResourceClaim = name:label! request:str
AppArmorProfile = localhostProfile:str type:str!
SELinuxOptions = level:str role:str type:str user:str
SeccompProfile = localhostProfile:str type:str!
Sysctl = name:str! value:text!
WindowsSecurityContextOptions = gmsaCredentialSpec:str gmsaCredentialSpecName:str hostProcess:bool runAsUserName:str
LabelSelector = matchExpressions:[LabelSelectorRequirement] matchLabels:labels
AWSElasticBlockStoreVolumeSource = fsType:str partition:int32 readOnly:bool volumeID:str!
AzureDiskVolumeSource = cachingMode:None|ReadOnly|ReadWrite diskName:str! diskURI:str! fsType:str
  kind:Dedicated|Managed|Shared readOnly:bool
AzureFileVolumeSource = readOnly:bool secretName:str! shareName:str!
CephFSVolumeSource = monitors:[str]! path:str readOnly:bool secretFile:str secretRef:LocalObjectReference user:str
CinderVolumeSource = fsType:str readOnly:bool secretRef:LocalObjectReference volumeID:str!
ConfigMapVolumeSource = defaultMode:mode items:[KeyToPath] name:name! optional:bool
CSIVolumeSource = driver:str! fsType:str nodePublishSecretRef:LocalObjectReference readOnly:bool
  volumeAttributes:{str}
DownwardAPIVolumeSource = defaultMode:mode items:[DownwardAPIVolumeFile]
EmptyDirVolumeSource = medium:str sizeLimit:quantity
EphemeralVolumeSource = volumeClaimTemplate:PersistentVolumeClaimTemplate
FCVolumeSource = fsType:str lun:int32 readOnly:bool targetWWNs:[str] wwids:[str]
FlexVolumeSource = driver:str! fsType:str options:{str} readOnly:bool secretRef:LocalObjectReference
FlockerVolumeSource = datasetName:str datasetUUID:str
GCEPersistentDiskVolumeSource = fsType:str partition:int32 pdName:str! readOnly:bool
GitRepoVolumeSource = directory:str repository:str! revision:str
GlusterfsVolumeSource = endpoints:str! path:str! readOnly:bool
ImageVolumeSource = pullPolicy:Always|IfNotPresent|Never reference:str
ISCSIVolumeSource = chapAuthDiscovery:bool chapAuthSession:bool fsType:str initiatorName:str iqn:str!
  iscsiInterface:str lun:int32! portals:[str] readOnly:bool secretRef:LocalObjectReference targetPortal:str!
NFSVolumeSource = path:str! readOnly:bool server:str!
PersistentVolumeClaimVolumeSource = claimName:name! readOnly:bool
PhotonPersistentDiskVolumeSource = fsType:str pdID:str!
PortworxVolumeSource = fsType:str readOnly:bool volumeID:str!
ProjectedVolumeSource = defaultMode:mode sources:[VolumeProjection]
QuobyteVolumeSource = group:str readOnly:bool registry:str! tenant:str user:str volume:str!
RBDVolumeSource = fsType:str image:str! keyring:str monitors:[str]! pool:str readOnly:bool
  secretRef:LocalObjectReference user:str
ScaleIOVolumeSource = fsType:str gateway:str! protectionDomain:str readOnly:bool secretRef:LocalObjectReference!
  sslEnabled:bool storageMode:str storagePool:str system:str! volumeName:str
SecretVolumeSource = defaultMode:mode items:[KeyToPath] optional:bool secretName:name
StorageOSVolumeSource = fsType:str readOnly:bool secretRef:LocalObjectReference volumeName:str volumeNamespace:str
VsphereVirtualDiskVolumeSource = fsType:str storagePolicyID:str storagePolicyName:str volumePath:str!
PreferredSchedulingTerm = preference:NodeSelectorTerm! weight:weight!
NodeSelector = nodeSelectorTerms:[NodeSelectorTerm]!
WeightedPodAffinityTerm = podAffinityTerm:PodAffinityTerm! weight:weight!
PodAffinityTerm = labelSelector:LabelSelector matchLabelKeys:[labelkey] mismatchLabelKeys:[labelkey]
  namespaceSelector:LabelSelector namespaces:[label] topologyKey:labelkey!
EnvVarSource = configMapKeyRef:ConfigMapKeySelector fieldRef:ObjectFieldSelector fileKeyRef:FileKeySelector
  resourceFieldRef:ResourceFieldSelector secretKeyRef:SecretKeySelector
ConfigMapEnvSource = name:name! optional:bool
SecretEnvSource = name:name optional:bool
LifecycleHandler = exec:ExecAction httpGet:HTTPGetAction sleep:SleepAction tcpSocket:TCPSocketAction
ExecAction = command:[str]
GRPCAction = port:port! service:text
HTTPGetAction = host:str httpHeaders:[HTTPHeader] path:str port:intstr! scheme:HTTP|HTTPS
TCPSocketAction = host:str port:intstr!
ContainerRestartRuleOnExitCodes = operator:In|NotIn! values:[natural]
Capabilities = add:[str] drop:[str]
LabelSelectorRequirement = key:labelkey! operator:DoesNotExist|Exists|In|NotIn! values:[labelvalue]
KeyToPath = key:str! mode:mode path:str!
DownwardAPIVolumeFile = fieldRef:ObjectFieldSelector mode:mode path:str! resourceFieldRef:ResourceFieldSelector
PersistentVolumeClaimTemplate = metadata:ClaimMetadata spec:PersistentVolumeClaimSpec!
VolumeProjection = clusterTrustBundle:ClusterTrustBundleProjection configMap:ConfigMapProjection
  downwardAPI:DownwardAPIProjection podCertificate:PodCertificateProjection secret:SecretProjection
  serviceAccountToken:ServiceAccountTokenProjection
NodeSelectorTerm = matchExpressions:[NodeSelectorRequirement] matchFields:[NodeSelectorRequirement]
ConfigMapKeySelector = key:str! name:name! optional:bool
ObjectFieldSelector = apiVersion:str fieldPath:str!
FileKeySelector = key:str! optional:bool path:str! volumeName:label!
ResourceFieldSelector = containerName:str divisor:quantity resource:str!
SecretKeySelector = key:str! name:name optional:bool
SleepAction = seconds:natural!
HTTPHeader = name:str! value:text!
PersistentVolumeClaimSpec = accessModes:[str] dataSource:TypedLocalObjectReference dataSourceRef:TypedObjectReference
  resources:VolumeResourceRequirements selector:LabelSelector storageClassName:str volumeAttributesClassName:str
  volumeMode:Block|Filesystem volumeName:name
ClusterTrustBundleProjection = labelSelector:LabelSelector name:str optional:bool path:str! signerName:str
ConfigMapProjection = items:[KeyToPath] name:name! optional:bool
DownwardAPIProjection = items:[DownwardAPIVolumeFile]
PodCertificateProjection = certificateChainPath:str credentialBundlePath:str keyPath:str keyType:str!
  maxExpirationSeconds:int32 signerName:str! userAnnotations:{str}
SecretProjection = items:[KeyToPath] name:name optional:bool
ServiceAccountTokenProjection = audience:str expirationSeconds:int64 path:str!
NodeSelectorRequirement = key:labelkey! operator:DoesNotExist|Exists|Gt|In|Lt|NotIn! values:[str]
TypedLocalObjectReference = apiGroup:str kind:str! name:str!
TypedObjectReference = apiGroup:str kind:str! name:str! namespace:str
VolumeResourceRequirements = limits:{quantity} requests:{quantity}
ClaimMetadata = annotations:annotations labels:labels
"""


def _read(table: str) -> dict[str, dict[str, tuple[str, bool]]]:
    types: dict[str, dict[str, tuple[str, bool]]] = {}
    fields: dict[str, tuple[str, bool]] = {}
    for word in table.replace(" = ", "= ").split():
        if word.endswith("="):
            fields = types[word[:-1]] = {}
            continue
        name, _, kind = word.partition(":")
        fields[name] = kind.removesuffix("!"), kind.endswith("!")
    return types


POD_TYPES = _read(_TABLE)
"""By type and field: the kind, and whether the field is required."""

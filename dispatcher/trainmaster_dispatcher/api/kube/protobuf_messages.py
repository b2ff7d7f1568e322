"""Messages of Kubernetes in protobuf: the numbers of the fields of Jobs, CronJobs, Pods, and of what else clients send so.

Facts of the API of Kubernetes 1.36, as its types have them. A line: the name of a message, then its fields, each a number, a name as
in JSON, and a type: none for text, ``int``, ``bool``, ``double``, ``bytes``, another message, ``-`` for what is not read. ``*`` is a
list, ``{}`` a map from text. ``?`` is a value that is sent only where it is set, so that 0, false and empty mean something. ``N+M``:
the fields of the message M are those of this one.
"""

MESSAGES = """
AWSElasticBlockStoreVolumeSource = 1:volumeID 2:fsType 3:partition:int 4:readOnly:bool
Affinity = 1:nodeAffinity:NodeAffinity? 2:podAffinity:PodAffinity? 3:podAntiAffinity:PodAntiAffinity?
AppArmorProfile = 1:type 2:localhostProfile?
AzureDiskVolumeSource = 1:diskName 2:diskURI 3:cachingMode? 4:fsType? 5:readOnly:bool? 6:kind?
AzureFileVolumeSource = 1:secretName 2:shareName 3:readOnly:bool
CSIVolumeSource = 1:driver 2:readOnly:bool? 3:fsType? 4:volumeAttributes:{} 5:nodePublishSecretRef:LocalObjectReference?
Capabilities = 1:add:* 2:drop:*
CephFSVolumeSource = 1:monitors:* 2:path 3:user 4:secretFile 5:secretRef:LocalObjectReference? 6:readOnly:bool
CinderVolumeSource = 1:volumeID 2:fsType 3:readOnly:bool 4:secretRef:LocalObjectReference?
ClusterTrustBundleProjection = 1:name? 2:signerName? 3:labelSelector:LabelSelector? 4:path 5:optional:bool?
ConfigMapEnvSource = 1+LocalObjectReference 2:optional:bool?
ConfigMapKeySelector = 1+LocalObjectReference 2:key 3:optional:bool?
ConfigMapProjection = 1+LocalObjectReference 2:items:*KeyToPath 4:optional:bool?
ConfigMapVolumeSource = 1+LocalObjectReference 2:items:*KeyToPath 3:defaultMode:int? 4:optional:bool?
Container = 1:name 2:image 3:command:* 4:args:* 5:workingDir 6:ports:*ContainerPort 7:env:*EnvVar
  8:resources:ResourceRequirements 9:volumeMounts:*VolumeMount 10:livenessProbe:Probe? 11:readinessProbe:Probe?
  12:lifecycle:Lifecycle? 13:terminationMessagePath 14:imagePullPolicy 15:securityContext:SecurityContext? 16:stdin:bool
  17:stdinOnce:bool 18:tty:bool 19:envFrom:*EnvFromSource 20:terminationMessagePolicy 21:volumeDevices:*VolumeDevice
  22:startupProbe:Probe? 23:resizePolicy:*ContainerResizePolicy 24:restartPolicy? 25:restartPolicyRules:*ContainerRestartRule
ContainerPort = 1:name 2:hostPort:int 3:containerPort:int 4:protocol 5:hostIP
ContainerResizePolicy = 1:resourceName 2:restartPolicy
ContainerRestartRule = 1:action 2:exitCodes:ContainerRestartRuleOnExitCodes?
ContainerRestartRuleOnExitCodes = 1:operator 2:values:*int
CronJob = 1:metadata:ObjectMeta 2:spec:CronJobSpec 3:status:-
CronJobSpec = 1:schedule 2:startingDeadlineSeconds:int? 3:concurrencyPolicy 4:suspend:bool? 5:jobTemplate:JobTemplateSpec
  6:successfulJobsHistoryLimit:int? 7:failedJobsHistoryLimit:int? 8:timeZone?
DeleteOptions = 1:gracePeriodSeconds:int? 2:preconditions:Preconditions? 3:orphanDependents:bool? 4:propagationPolicy?
  5:dryRun:* 6:ignoreStoreReadErrorWithClusterBreakingPotential:bool?
DownwardAPIProjection = 1:items:*DownwardAPIVolumeFile
DownwardAPIVolumeFile = 1:path 2:fieldRef:ObjectFieldSelector? 3:resourceFieldRef:ResourceFieldSelector? 4:mode:int?
DownwardAPIVolumeSource = 1:items:*DownwardAPIVolumeFile 2:defaultMode:int?
EmptyDirVolumeSource = 1:medium 2:sizeLimit:Quantity?
EnvFromSource = 1:prefix 2:configMapRef:ConfigMapEnvSource? 3:secretRef:SecretEnvSource?
EnvVar = 1:name 2:value 3:valueFrom:EnvVarSource?
EnvVarSource = 1:fieldRef:ObjectFieldSelector? 2:resourceFieldRef:ResourceFieldSelector? 3:configMapKeyRef:ConfigMapKeySelector?
  4:secretKeyRef:SecretKeySelector? 5:fileKeyRef:FileKeySelector?
EphemeralContainer = 1+EphemeralContainerCommon 2:targetContainerName
EphemeralContainerCommon = 1:name 2:image 3:command:* 4:args:* 5:workingDir 6:ports:*ContainerPort 7:env:*EnvVar
  8:resources:ResourceRequirements 9:volumeMounts:*VolumeMount 10:livenessProbe:Probe? 11:readinessProbe:Probe?
  12:lifecycle:Lifecycle? 13:terminationMessagePath 14:imagePullPolicy 15:securityContext:SecurityContext? 16:stdin:bool
  17:stdinOnce:bool 18:tty:bool 19:envFrom:*EnvFromSource 20:terminationMessagePolicy 21:volumeDevices:*VolumeDevice
  22:startupProbe:Probe? 23:resizePolicy:*ContainerResizePolicy 24:restartPolicy? 25:restartPolicyRules:*ContainerRestartRule
EphemeralVolumeSource = 1:volumeClaimTemplate:PersistentVolumeClaimTemplate?
ExecAction = 1:command:*
FCVolumeSource = 1:targetWWNs:* 2:lun:int? 3:fsType 4:readOnly:bool 5:wwids:*
FieldSelectorAttributes = 1:rawSelector 2:requirements:*FieldSelectorRequirement
FieldSelectorRequirement = 1:key 2:operator 3:values:*
FileKeySelector = 1:volumeName 2:path 3:key 4:optional:bool?
FlexVolumeSource = 1:driver 2:fsType 3:secretRef:LocalObjectReference? 4:readOnly:bool 5:options:{}
FlockerVolumeSource = 1:datasetName 2:datasetUUID
GCEPersistentDiskVolumeSource = 1:pdName 2:fsType 3:partition:int 4:readOnly:bool
GRPCAction = 1:port:int 2:service?
GitRepoVolumeSource = 1:repository 2:revision 3:directory
GlusterfsVolumeSource = 1:endpoints 2:path 3:readOnly:bool
HTTPGetAction = 1:path 2:port:IntOrString 3:host 4:scheme 5:httpHeaders:*HTTPHeader
HTTPHeader = 1:name 2:value
HostAlias = 1:ip 2:hostnames:*
HostPathVolumeSource = 1:path 2:type?
ISCSIVolumeSource = 1:targetPortal 2:iqn 3:lun:int 4:iscsiInterface 5:fsType 6:readOnly:bool 7:portals:*
  8:chapAuthDiscovery:bool 10:secretRef:LocalObjectReference? 11:chapAuthSession:bool 12:initiatorName?
ImageVolumeSource = 1:reference 2:pullPolicy
Job = 1:metadata:ObjectMeta 2:spec:JobSpec 3:status:-
JobSpec = 1:parallelism:int? 2:completions:int? 3:activeDeadlineSeconds:int? 4:selector:LabelSelector? 5:manualSelector:bool?
  6:template:PodTemplateSpec 7:backoffLimit:int? 8:ttlSecondsAfterFinished:int? 9:completionMode? 10:suspend:bool?
  11:podFailurePolicy:PodFailurePolicy? 12:backoffLimitPerIndex:int? 13:maxFailedIndexes:int? 14:podReplacementPolicy?
  15:managedBy? 16:successPolicy:SuccessPolicy?
JobTemplateSpec = 1:metadata:ObjectMeta 2:spec:JobSpec
KeyToPath = 1:key 2:path 3:mode:int?
LabelSelector = 1:matchLabels:{} 2:matchExpressions:*LabelSelectorRequirement
LabelSelectorAttributes = 1:rawSelector 2:requirements:*LabelSelectorRequirement
LabelSelectorRequirement = 1:key 2:operator 3:values:*
Lifecycle = 1:postStart:LifecycleHandler? 2:preStop:LifecycleHandler? 3:stopSignal?
LifecycleHandler = 1:exec:ExecAction? 2:httpGet:HTTPGetAction? 3:tcpSocket:TCPSocketAction? 4:sleep:SleepAction?
LocalObjectReference = 1:name
ManagedFieldsEntry = 1:manager 2:operation 3:apiVersion 4:time:Time? 6:fieldsType 7:fieldsV1:FieldsV1? 8:subresource
NFSVolumeSource = 1:server 2:path 3:readOnly:bool
NodeAffinity = 1:requiredDuringSchedulingIgnoredDuringExecution:NodeSelector?
  2:preferredDuringSchedulingIgnoredDuringExecution:*PreferredSchedulingTerm
NodeSelector = 1:nodeSelectorTerms:*NodeSelectorTerm
NodeSelectorRequirement = 1:key 2:operator 3:values:*
NodeSelectorTerm = 1:matchExpressions:*NodeSelectorRequirement 2:matchFields:*NodeSelectorRequirement
NonResourceAttributes = 1:path 2:verb
NonResourceRule = 1:verbs:* 2:nonResourceURLs:*
ObjectFieldSelector = 1:apiVersion 2:fieldPath
ObjectMeta = 1:name 2:generateName 3:namespace 4:selfLink 5:uid 6:resourceVersion 7:generation:int 8:creationTimestamp:Time
  9:deletionTimestamp:Time? 10:deletionGracePeriodSeconds:int? 11:labels:{} 12:annotations:{} 13:ownerReferences:*OwnerReference
  14:finalizers:* 17:managedFields:*ManagedFieldsEntry
OwnerReference = 1:kind 3:name 4:uid 5:apiVersion 6:controller:bool? 7:blockOwnerDeletion:bool?
PersistentVolumeClaimSpec = 1:accessModes:* 2:resources:VolumeResourceRequirements 3:volumeName 4:selector:LabelSelector?
  5:storageClassName? 6:volumeMode? 7:dataSource:TypedLocalObjectReference? 8:dataSourceRef:TypedObjectReference?
  9:volumeAttributesClassName?
PersistentVolumeClaimTemplate = 1:metadata:ObjectMeta 2:spec:PersistentVolumeClaimSpec
PersistentVolumeClaimVolumeSource = 1:claimName 2:readOnly:bool
PhotonPersistentDiskVolumeSource = 1:pdID 2:fsType
Pod = 1:metadata:ObjectMeta 2:spec:PodSpec 3:status:-
PodAffinity = 1:requiredDuringSchedulingIgnoredDuringExecution:*PodAffinityTerm
  2:preferredDuringSchedulingIgnoredDuringExecution:*WeightedPodAffinityTerm
PodAffinityTerm = 1:labelSelector:LabelSelector? 2:namespaces:* 3:topologyKey 4:namespaceSelector:LabelSelector?
  5:matchLabelKeys:* 6:mismatchLabelKeys:*
PodAntiAffinity = 1:requiredDuringSchedulingIgnoredDuringExecution:*PodAffinityTerm
  2:preferredDuringSchedulingIgnoredDuringExecution:*WeightedPodAffinityTerm
PodCertificateProjection = 1:signerName 2:keyType 3:maxExpirationSeconds:int? 4:credentialBundlePath 5:keyPath
  6:certificateChainPath 7:userAnnotations:{}
PodDNSConfig = 1:nameservers:* 2:searches:* 3:options:*PodDNSConfigOption
PodDNSConfigOption = 1:name 2:value?
PodFailurePolicy = 1:rules:*PodFailurePolicyRule
PodFailurePolicyOnExitCodesRequirement = 1:containerName? 2:operator 3:values:*int
PodFailurePolicyOnPodConditionsPattern = 1:type 2:status
PodFailurePolicyRule = 1:action 2:onExitCodes:PodFailurePolicyOnExitCodesRequirement?
  3:onPodConditions:*PodFailurePolicyOnPodConditionsPattern
PodOS = 1:name
PodReadinessGate = 1:conditionType
PodResourceClaim = 1:name 3:resourceClaimName? 4:resourceClaimTemplateName?
PodSchedulingGate = 1:name
PodSchedulingGroup = 1:podGroupName?
PodSecurityContext = 1:seLinuxOptions:SELinuxOptions? 2:runAsUser:int? 3:runAsNonRoot:bool? 4:supplementalGroups:*int
  5:fsGroup:int? 6:runAsGroup:int? 7:sysctls:*Sysctl 8:windowsOptions:WindowsSecurityContextOptions? 9:fsGroupChangePolicy?
  10:seccompProfile:SeccompProfile? 11:appArmorProfile:AppArmorProfile? 12:supplementalGroupsPolicy? 13:seLinuxChangePolicy?
PodSpec = 1:volumes:*Volume 2:containers:*Container 3:restartPolicy 4:terminationGracePeriodSeconds:int?
  5:activeDeadlineSeconds:int? 6:dnsPolicy 7:nodeSelector:{} 8:serviceAccountName 9:serviceAccount 10:nodeName
  11:hostNetwork:bool 12:hostPID:bool 13:hostIPC:bool 14:securityContext:PodSecurityContext?
  15:imagePullSecrets:*LocalObjectReference 16:hostname 17:subdomain 18:affinity:Affinity? 19:schedulerName
  20:initContainers:*Container 21:automountServiceAccountToken:bool? 22:tolerations:*Toleration 23:hostAliases:*HostAlias
  24:priorityClassName 25:priority:int? 26:dnsConfig:PodDNSConfig? 27:shareProcessNamespace:bool?
  28:readinessGates:*PodReadinessGate 29:runtimeClassName? 30:enableServiceLinks:bool? 31:preemptionPolicy?
  32:overhead:{Quantity} 33:topologySpreadConstraints:*TopologySpreadConstraint 34:ephemeralContainers:*EphemeralContainer
  35:setHostnameAsFQDN:bool? 36:os:PodOS? 37:hostUsers:bool? 38:schedulingGates:*PodSchedulingGate
  39:resourceClaims:*PodResourceClaim 40:resources:ResourceRequirements? 41:hostnameOverride?
  43:schedulingGroup:PodSchedulingGroup?
PodTemplateSpec = 1:metadata:ObjectMeta 2:spec:PodSpec
PortworxVolumeSource = 1:volumeID 2:fsType 3:readOnly:bool
Preconditions = 1:uid? 2:resourceVersion?
PreferredSchedulingTerm = 1:weight:int 2:preference:NodeSelectorTerm
Probe = 1+ProbeHandler 2:initialDelaySeconds:int 3:timeoutSeconds:int 4:periodSeconds:int 5:successThreshold:int
  6:failureThreshold:int 7:terminationGracePeriodSeconds:int?
ProbeHandler = 1:exec:ExecAction? 2:httpGet:HTTPGetAction? 3:tcpSocket:TCPSocketAction? 4:grpc:GRPCAction?
ProjectedVolumeSource = 1:sources:*VolumeProjection 2:defaultMode:int?
QuobyteVolumeSource = 1:registry 2:volume 3:readOnly:bool 4:user 5:group 6:tenant
RBDVolumeSource = 1:monitors:* 2:image 3:fsType 4:pool 5:user 6:keyring 7:secretRef:LocalObjectReference? 8:readOnly:bool
ResourceAttributes = 1:namespace 2:verb 3:group 4:version 5:resource 6:subresource 7:name
  8:fieldSelector:FieldSelectorAttributes? 9:labelSelector:LabelSelectorAttributes?
ResourceClaim = 1:name 2:request
ResourceFieldSelector = 1:containerName 2:resource 3:divisor:Quantity
ResourceRequirements = 1:limits:{Quantity} 2:requests:{Quantity} 3:claims:*ResourceClaim
ResourceRule = 1:verbs:* 2:apiGroups:* 3:resources:* 4:resourceNames:*
SELinuxOptions = 1:user 2:role 3:type 4:level
ScaleIOVolumeSource = 1:gateway 2:system 3:secretRef:LocalObjectReference? 4:sslEnabled:bool 5:protectionDomain 6:storagePool
  7:storageMode 8:volumeName 9:fsType 10:readOnly:bool
SeccompProfile = 1:type 2:localhostProfile?
SecretEnvSource = 1+LocalObjectReference 2:optional:bool?
SecretKeySelector = 1+LocalObjectReference 2:key 3:optional:bool?
SecretProjection = 1+LocalObjectReference 2:items:*KeyToPath 4:optional:bool?
SecretVolumeSource = 1:secretName 2:items:*KeyToPath 3:defaultMode:int? 4:optional:bool?
SecurityContext = 1:capabilities:Capabilities? 2:privileged:bool? 3:seLinuxOptions:SELinuxOptions? 4:runAsUser:int?
  5:runAsNonRoot:bool? 6:readOnlyRootFilesystem:bool? 7:allowPrivilegeEscalation:bool? 8:runAsGroup:int? 9:procMount?
  10:windowsOptions:WindowsSecurityContextOptions? 11:seccompProfile:SeccompProfile? 12:appArmorProfile:AppArmorProfile?
SelfSubjectAccessReview = 1:metadata:ObjectMeta 2:spec:SelfSubjectAccessReviewSpec 3:status:SubjectAccessReviewStatus
SelfSubjectAccessReviewSpec = 1:resourceAttributes:ResourceAttributes? 2:nonResourceAttributes:NonResourceAttributes?
SelfSubjectReview = 1:metadata:ObjectMeta 2:status:SelfSubjectReviewStatus
SelfSubjectReviewStatus = 1:userInfo:UserInfo
SelfSubjectRulesReview = 1:metadata:ObjectMeta 2:spec:SelfSubjectRulesReviewSpec 3:status:SubjectRulesReviewStatus
SelfSubjectRulesReviewSpec = 1:namespace
ServiceAccountTokenProjection = 1:audience 2:expirationSeconds:int? 3:path
SleepAction = 1:seconds:int
StorageOSVolumeSource = 1:volumeName 2:volumeNamespace 3:fsType 4:readOnly:bool 5:secretRef:LocalObjectReference?
SubjectAccessReviewStatus = 1:allowed:bool 2:reason 3:evaluationError 4:denied:bool
SubjectRulesReviewStatus = 1:resourceRules:*ResourceRule 2:nonResourceRules:*NonResourceRule 3:incomplete:bool 4:evaluationError
SuccessPolicy = 1:rules:*SuccessPolicyRule
SuccessPolicyRule = 1:succeededIndexes? 2:succeededCount:int?
Sysctl = 1:name 2:value
TCPSocketAction = 1:port:IntOrString 2:host
Toleration = 1:key 2:operator 3:value 4:effect 5:tolerationSeconds:int?
TopologySpreadConstraint = 1:maxSkew:int 2:topologyKey 3:whenUnsatisfiable 4:labelSelector:LabelSelector? 5:minDomains:int?
  6:nodeAffinityPolicy? 7:nodeTaintsPolicy? 8:matchLabelKeys:*
TypedLocalObjectReference = 1:apiGroup? 2:kind 3:name
TypedObjectReference = 1:apiGroup? 2:kind 3:name 4:namespace?
UserInfo = 1:username 2:uid 3:groups:* 4:extra:{*}
Volume = 1:name 2+VolumeSource
VolumeDevice = 1:name 2:devicePath
VolumeMount = 1:name 2:readOnly:bool 3:mountPath 4:subPath 5:mountPropagation? 6:subPathExpr 7:recursiveReadOnly?
VolumeProjection = 1:secret:SecretProjection? 2:downwardAPI:DownwardAPIProjection? 3:configMap:ConfigMapProjection?
  4:serviceAccountToken:ServiceAccountTokenProjection? 5:clusterTrustBundle:ClusterTrustBundleProjection?
  6:podCertificate:PodCertificateProjection?
VolumeResourceRequirements = 1:limits:{Quantity} 2:requests:{Quantity}
VolumeSource = 1:hostPath:HostPathVolumeSource? 2:emptyDir:EmptyDirVolumeSource?
  3:gcePersistentDisk:GCEPersistentDiskVolumeSource? 4:awsElasticBlockStore:AWSElasticBlockStoreVolumeSource?
  5:gitRepo:GitRepoVolumeSource? 6:secret:SecretVolumeSource? 7:nfs:NFSVolumeSource? 8:iscsi:ISCSIVolumeSource?
  9:glusterfs:GlusterfsVolumeSource? 10:persistentVolumeClaim:PersistentVolumeClaimVolumeSource? 11:rbd:RBDVolumeSource?
  12:flexVolume:FlexVolumeSource? 13:cinder:CinderVolumeSource? 14:cephfs:CephFSVolumeSource? 15:flocker:FlockerVolumeSource?
  16:downwardAPI:DownwardAPIVolumeSource? 17:fc:FCVolumeSource? 18:azureFile:AzureFileVolumeSource?
  19:configMap:ConfigMapVolumeSource? 20:vsphereVolume:VsphereVirtualDiskVolumeSource? 21:quobyte:QuobyteVolumeSource?
  22:azureDisk:AzureDiskVolumeSource? 23:photonPersistentDisk:PhotonPersistentDiskVolumeSource?
  24:portworxVolume:PortworxVolumeSource? 25:scaleIO:ScaleIOVolumeSource? 26:projected:ProjectedVolumeSource?
  27:storageos:StorageOSVolumeSource? 28:csi:CSIVolumeSource? 29:ephemeral:EphemeralVolumeSource? 30:image:ImageVolumeSource?
VsphereVirtualDiskVolumeSource = 1:volumePath 2:fsType 3:storagePolicyName 4:storagePolicyID
WeightedPodAffinityTerm = 1:weight:int 2:podAffinityTerm:PodAffinityTerm
WindowsSecurityContextOptions = 1:gmsaCredentialSpecName? 2:gmsaCredentialSpec? 3:runAsUserName? 4:hostProcess:bool?
"""

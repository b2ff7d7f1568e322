/** Names of the API's models, which `npm run types` makes of the OpenAPI document. */
import type { components } from "./schema";

type Models = components["schemas"];
export type Identity = Models["Identity"];
export type SignIn = Models["SignIn"];
export type SignedOut = Models["SignedOut"];
export type JobView = Models["JobView"];
export type JobPage = Models["JobPage"];
export type RunView = Models["RunView"];
export type JobReason = Models["JobReason"];
export type EventView = Models["EventView"];
export type QueueView = Models["QueueView"];
export type QueueList = Models["QueueList"];
export type ClusterView = Models["ClusterView"];
export type TopAnswer = Models["TopAnswer"];
export type TopJob = Models["TopJob"];
export type ClusterList = Models["ClusterList"];
export type BulkAnswer = Models["BulkAnswer"];
export type BulkFilter = Models["BulkFilter"];

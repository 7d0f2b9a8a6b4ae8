/* Teams of the device API, which ask nobody: each rank is a team of its own where loads and stores
 * would reach, and all are one over the network. */
#include "communicator.h"

static ncclTeam_t world(ncclComm_t comm)
{
    ncclTeam_t team = {0, 0, 1};
    ncclCommCount(comm, &team.nRanks);
    ncclCommUserRank(comm, &team.rank);
    return team;
}

ncclTeam_t ncclTeamWorld(ncclComm_t comm)
{
    return world(comm);
}

ncclTeam_t ncclTeamRail(ncclComm_t comm)
{
    return world(comm);
}

ncclTeam_t ncclTeamLsa(ncclComm_t comm)
{
    (void)comm;
    return (ncclTeam_t){1, 0, 1};
}

int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank)
{
    return world(comm).rank + (rank - team.rank) * team.stride;
}

int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank)
{
    return ncclTeamLsa(comm).rank + (rank - team.rank) * team.stride;
}

int ncclLLA2ACalcSlots(int maxElts, int maxEltSize)
{
    return maxElts * ((maxEltSize + 7) / 8);
}

/* What ucx_api.h says of UCX's interface is what UCX's own headers say: it builds, so it holds. */
#include <ucp/api/ucp.h>

#include "transport/ucx_api.h"

#define SAME_SIZE(OURS, THEIRS) _Static_assert(sizeof(OURS) == sizeof(THEIRS), #THEIRS)
/* Where ours ends, theirs may go on in a later release. */
#define SAME_PLACE(OURS, A, THEIRS, B)                                                             \
    _Static_assert(offsetof(struct OURS, A) == offsetof(THEIRS, B) &&                              \
                       sizeof(((struct OURS *)0)->A) == sizeof(((THEIRS *)0)->B),                  \
                   #THEIRS "." #B)
#define SAME(OURS, THEIRS) _Static_assert((OURS) == (THEIRS), #THEIRS)

SAME_SIZE(ucx_status, ucs_status_t);
SAME(UCX_OK, UCS_OK);
SAME(UCX_IN_PROGRESS, UCS_INPROGRESS);
SAME(UCX_BUSY, UCS_ERR_BUSY);
SAME(UCX_UNREACHABLE, UCS_ERR_UNREACHABLE);
SAME(UCX_CANCELED, UCS_ERR_CANCELED);
SAME(-100, UCS_ERR_LAST);

SAME_PLACE(ucx_params, mask, ucp_params_t, field_mask);
SAME_PLACE(ucx_params, features, ucp_params_t, features);
SAME_PLACE(ucx_params, estimated_eps, ucp_params_t, estimated_num_eps);
SAME_PLACE(ucx_params, node_local_id, ucp_params_t, node_local_id);
SAME(UCX_PARAM_FEATURES, UCP_PARAM_FIELD_FEATURES);
SAME(UCX_PARAM_ESTIMATED_EPS, UCP_PARAM_FIELD_ESTIMATED_NUM_EPS);
SAME(UCX_FEATURE_WAKEUP, UCP_FEATURE_WAKEUP);
SAME(UCX_FEATURE_AM, UCP_FEATURE_AM);

SAME_PLACE(ucx_worker_params, thread_mode, ucp_worker_params_t, thread_mode);
SAME_PLACE(ucx_worker_params, cpu_mask, ucp_worker_params_t, cpu_mask);
SAME_PLACE(ucx_worker_params, flags, ucp_worker_params_t, flags);
SAME_PLACE(ucx_worker_params, client_id, ucp_worker_params_t, client_id);
SAME(UCX_WORKER_PARAM_THREAD_MODE, UCP_WORKER_PARAM_FIELD_THREAD_MODE);
SAME(UCX_WORKER_PARAM_FLAGS, UCP_WORKER_PARAM_FIELD_FLAGS);
SAME(UCX_THREAD_MODE_SERIALIZED, UCS_THREAD_MODE_SERIALIZED);
SAME(UCX_WORKER_FLAG_IGNORE_REQUEST_LEAK, UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK);

SAME_PLACE(ucx_ep_params, address, ucp_ep_params_t, address);
SAME_PLACE(ucx_ep_params, error_mode, ucp_ep_params_t, err_mode);
SAME_PLACE(ucx_ep_params, error_handler, ucp_ep_params_t, err_handler);
SAME_PLACE(ucx_ep_params, flags, ucp_ep_params_t, flags);
SAME_PLACE(ucx_ep_params, local_socket_address, ucp_ep_params_t, local_sockaddr);
SAME(UCX_EP_PARAM_REMOTE_ADDRESS, UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
SAME(UCX_EP_PARAM_ERROR_MODE, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
SAME(UCX_EP_PARAM_ERROR_HANDLER, UCP_EP_PARAM_FIELD_ERR_HANDLER);
SAME(UCX_ERROR_MODE_NONE, UCP_ERR_HANDLING_MODE_NONE);
SAME(UCX_ERROR_MODE_PEER, UCP_ERR_HANDLING_MODE_PEER);

SAME_PLACE(ucx_am_received, attributes, ucp_am_recv_param_t, recv_attr);
SAME(UCX_AM_RECEIVED_RENDEZVOUS, UCP_AM_RECV_ATTR_FLAG_RNDV);
SAME_PLACE(ucx_am_handler, id, ucp_am_handler_param_t, id);
SAME_PLACE(ucx_am_handler, flags, ucp_am_handler_param_t, flags);
SAME_PLACE(ucx_am_handler, call, ucp_am_handler_param_t, cb);
SAME_PLACE(ucx_am_handler, arg, ucp_am_handler_param_t, arg);
SAME(UCX_AM_HANDLER_ID, UCP_AM_HANDLER_PARAM_FIELD_ID);
SAME(UCX_AM_HANDLER_FLAGS, UCP_AM_HANDLER_PARAM_FIELD_FLAGS);
SAME(UCX_AM_HANDLER_CALL, UCP_AM_HANDLER_PARAM_FIELD_CB);
SAME(UCX_AM_HANDLER_ARG, UCP_AM_HANDLER_PARAM_FIELD_ARG);
SAME(UCX_AM_WHOLE_MESSAGE, UCP_AM_FLAG_WHOLE_MSG);

SAME_PLACE(ucx_operation, mask, ucp_request_param_t, op_attr_mask);
SAME_PLACE(ucx_operation, flags, ucp_request_param_t, flags);
SAME_PLACE(ucx_operation, call, ucp_request_param_t, cb);
SAME_PLACE(ucx_operation, datatype, ucp_request_param_t, datatype);
SAME_PLACE(ucx_operation, user_data, ucp_request_param_t, user_data);
SAME_PLACE(ucx_operation, memory_type, ucp_request_param_t, memory_type);
SAME_PLACE(ucx_operation, memory, ucp_request_param_t, memh);
SAME(UCX_OPERATION_CALL, UCP_OP_ATTR_FIELD_CALLBACK);
SAME(UCX_OPERATION_USER_DATA, UCP_OP_ATTR_FIELD_USER_DATA);
SAME(UCX_OPERATION_FLAGS, UCP_OP_ATTR_FIELD_FLAGS);
SAME(UCX_OPERATION_MEMORY, UCP_OP_ATTR_FIELD_MEMH);
SAME(UCX_AM_SEND_COPY_HEADER, UCP_AM_SEND_FLAG_COPY_HEADER);
SAME(UCX_CLOSE_FORCE, UCP_EP_CLOSE_FLAG_FORCE);

SAME_PLACE(ucx_memory_params, address, ucp_mem_map_params_t, address);
SAME_PLACE(ucx_memory_params, size, ucp_mem_map_params_t, length);
SAME(UCX_MEMORY_ADDRESS, UCP_MEM_MAP_PARAM_FIELD_ADDRESS);
SAME(UCX_MEMORY_SIZE, UCP_MEM_MAP_PARAM_FIELD_LENGTH);

int main(void)
{
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
// What a node is by the file: the version of its operator, the function of the
// file that it calls, and its attributes.
#include <stdlib.h>
#include <string.h>

#include "onnx/onnx_internal.h"

// ---- Attributes ----

static const Onnx__AttributeProto* find_attr(const Onnx__NodeProto* proto,
                                             const choir__onnx_site_t* site,
                                             const char* name,
                                             int32_t* out_number) {
  for (size_t i = 0; i < proto->n_attribute; ++i) {
    const Onnx__AttributeProto* attr = proto->attribute[i];
    if (!attr->name || strcmp(attr->name, name) != 0) continue;
    if (out_number) *out_number = (int32_t)i;
    const char* other = attr->ref_attr_name;
    if (!other || !*other) return attr;
    if (!site) return NULL;
    const Onnx__AttributeProto* given =
        find_attr(site->call, site->outer, other, NULL);
    for (size_t k = 0; !given && k < site->function->n_attribute_proto; ++k) {
      const Onnx__AttributeProto* usual = site->function->attribute_proto[k];
      if (usual->name && strcmp(usual->name, other) == 0) given = usual;
    }
    return given;
  }
  return NULL;
}

const Onnx__AttributeProto* choir__onnx_find_attr(
    const choir__onnx_node_t* node, const char* name, int32_t* out_number) {
  return find_attr(node->proto, node->site, name, out_number);
}
// ---- Versions ----

choir_status_t choir__onnx_check_list(size_t count, const char* what) {
  if (count <= CHOIR__ONNX_MAX_LIST) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT, "onnx: %zu %s; at most %d are possible",
                     count, what, CHOIR__ONNX_MAX_LIST);
}
const char* choir__onnx_domain(const char* domain) {
  return !domain || strcmp(domain, "ai.onnx") == 0 ? "" : domain;
}

int64_t choir__onnx_version(const choir_onnx_t* onnx,
                            const choir__onnx_site_t* site,
                            const char* domain) {
  const Onnx__ModelProto* model = onnx->proto;
  size_t count = model->n_opset_import;
  Onnx__OperatorSetIdProto** imports = model->opset_import;
  if (site && site->function->n_opset_import > 0) {
    count = site->function->n_opset_import;
    imports = site->function->opset_import;
  }
  for (size_t i = 0; i < count; ++i)
    if (strcmp(choir__onnx_domain(imports[i]->domain), domain) == 0)
      return imports[i]->version;
  return 1;
}

// The versions that a file or a function says.
static choir_status_t check_versions(Onnx__OperatorSetIdProto* const* imports,
                                     size_t count) {
  CHOIR_TRY(choir__onnx_check_list(count, "operator sets"));
  for (size_t i = 0; i < count; ++i) {
    const int64_t version = imports[i]->version;
    if (*choir__onnx_domain(imports[i]->domain)) continue;
    if (version < 1)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "onnx: the file's operators are of version %lld; "
                         "versions begin with 1",
                         (long long)version);
    if (version > CHOIR__ONNX_MAX_VERSION)
      return CHOIR_ERROR(UNIMPLEMENTED,
                         "onnx: the file's operators are of version %lld; "
                         "Choir knows those up to %d",
                         (long long)version, CHOIR__ONNX_MAX_VERSION);
  }
  return NULL;
}

// From version 3 of the format on a file has to say its operators' versions.
static choir_status_t check_model(const Onnx__ModelProto* model) {
  CHOIR_TRY(check_versions(model->opset_import, model->n_opset_import));
  if (model->ir_version >= 3 && model->n_opset_import == 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "onnx: the file does not say of which version its "
                       "operators are");
  for (size_t i = 0; i < model->n_functions; ++i) {
    const Onnx__FunctionProto* function = model->functions[i];
    CHOIR_TRY(check_versions(function->opset_import, function->n_opset_import));
    CHOIR_TRY(
        choir__onnx_check_list(function->n_attribute_proto, "attributes"));
  }
  return NULL;
}

static const char* text_of(const char* text) { return text ? text : ""; }

static int compare_functions(const void* a, const void* b) {
  const Onnx__FunctionProto* x = *(const Onnx__FunctionProto* const*)a;
  const Onnx__FunctionProto* y = *(const Onnx__FunctionProto* const*)b;
  int order = strcmp(text_of(x->name), text_of(y->name));
  if (!order)
    order =
        strcmp(choir__onnx_domain(x->domain), choir__onnx_domain(y->domain));
  if (!order) order = strcmp(text_of(x->overload), text_of(y->overload));
  return order;
}

choir_status_t choir__onnx_sort_functions(choir_onnx_t* onnx) {
  const Onnx__ModelProto* model = onnx->proto;
  CHOIR_TRY(check_model(model));
  const size_t count = model->n_functions;
  onnx->functions = choir_arena_alloc(onnx->arena, sizeof(void*) * (count + 1));
  if (!onnx->functions)
    return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for the functions");
  for (size_t i = 0; i < count; ++i) onnx->functions[i] = model->functions[i];
  if (count > 1)
    qsort(onnx->functions, count, sizeof(void*), compare_functions);
  for (size_t i = 1; i < count; ++i)
    if (compare_functions(&onnx->functions[i - 1], &onnx->functions[i]) == 0)
      return CHOIR_ERROR(INVALID_ARGUMENT, "onnx: function '%s' is given twice",
                         text_of(onnx->functions[i]->name));
  return NULL;
}

const Onnx__FunctionProto* choir__onnx_find_function(
    const choir_onnx_t* onnx, const Onnx__NodeProto* proto) {
  Onnx__FunctionProto key = ONNX__FUNCTION_PROTO__INIT;
  key.name = proto->op_type;
  key.domain = proto->domain;
  key.overload = proto->overload;
  const Onnx__FunctionProto* at = &key;
  const Onnx__FunctionProto** found =
      bsearch(&at, onnx->functions, onnx->proto->n_functions, sizeof(void*),
              compare_functions);
  return found ? *found : NULL;
}
